import pytest

from blockyard.scheduler.block_pool import BlockPool
from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.holdings import Holdings
from blockyard.scheduler.ledger import SlotCounts
from blockyard.scheduler.plan import BlockCopy
from blockyard.scheduler.request import Request, RequestSpec
from blockyard.scheduler.sampling import SamplingParams


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(8, 4)


@pytest.fixture
def holdings(pool: BlockPool) -> Holdings:
    return Holdings(pool)


def member(choice: int = 0) -> Request:
    return Request(
        spec=RequestSpec("r", (1,) * 6, SamplingParams()),
        sequence=0,
        max_tokens=9,
        table=BlockTable(4),
        arrived_at=0.0,
        choice=choice,
    )


def computed(pool: BlockPool, holdings: Holdings, num_tokens: int) -> Request:
    """A request that has computed so many tokens."""
    request = member()
    holdings.append_restored(request, pool.allocate(-(-num_tokens // 4)) or (), num_tokens)
    return request


def forked(holdings: Holdings, parent: Request) -> Request:
    child = member(1)
    holdings.fork(parent, child)
    return child


def test_shared_slots_are_counted_once(pool: BlockPool, holdings: Holdings) -> None:
    parent = computed(pool, holdings, 6)
    child = forked(holdings, parent)
    assert holdings.counts() == SlotCounts(filled=6, promised=0, empty_tail=2)
    assert holdings.logical_tokens == 12
    assert (holdings.num_exclusive(parent), holdings.num_held_by([parent])) == (0, 0)
    assert holdings.num_held_by([parent, child]) == 2
    assert holdings.shrink(parent, 0) == 0
    assert holdings.counts().filled == 6
    assert holdings.shrink(child, 1) == 1
    assert (holdings.counts().filled, child.num_computed) == (4, 4)


def test_a_shared_tail_is_written_by_the_last_alone(pool: BlockPool, holdings: Holdings) -> None:
    parent = computed(pool, holdings, 6)
    child = forked(holdings, parent)
    assert holdings.shares_tail(parent) and holdings.shares_tail(child)
    assert parent.table.num_writable == child.table.num_writable == 4
    copy = holdings.copy_tail(parent, (pool.allocate(1) or ())[0], step=1)
    assert copy == BlockCopy(1, 2)
    assert parent.table.num_writable == 8
    assert holdings.counts() == SlotCounts(filled=8, promised=0, empty_tail=4)
    assert not holdings.shares_tail(parent) and not holdings.shares_tail(child)


def test_a_full_tail_is_shared_for_good(pool: BlockPool, holdings: Holdings) -> None:
    parent = computed(pool, holdings, 8)
    child = forked(holdings, parent)
    assert not holdings.shares_tail(parent) and not holdings.shares_tail(child)
    assert child.table.num_writable == 8


def test_what_is_being_copied_is_fenced_by_the_step_that_copies(
    pool: BlockPool, holdings: Holdings
) -> None:
    parent = computed(pool, holdings, 6)
    child = forked(holdings, parent)
    holdings.copy_tail(parent, (pool.allocate(1) or ())[0], step=7)
    # The other goes in the same step, without having been in it.
    holdings.shrink(child, 0)
    pool.acknowledge(6)
    assert pool.num_fenced == 1
    pool.acknowledge(7)
    assert pool.num_fenced == 0
