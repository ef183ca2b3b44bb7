import random

import pytest

from blockyard.scheduler.block_pool import BlockNotHeld, BlockPool


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(4, 16)
    first = pool.allocate(3)
    assert first is not None and len(set(first)) == 3
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(0) == ()
    pool.check()


def test_a_released_block_is_free_at_once_when_its_step_was_acknowledged() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.acknowledge(5)
    pool.release(blocks, fence_step=5)
    assert (pool.num_free, pool.num_fenced) == (2, 0)
    pool.check()


def test_a_fence_opens_at_its_step_and_not_before() -> None:
    pool = BlockPool(3, 16)
    a, b, c = pool.allocate(3) or ()
    pool.release((a,), fence_step=2)
    pool.release((b,), fence_step=4)
    pool.release((c,), fence_step=3)
    assert pool.counts().fenced == 3
    pool.acknowledge(1)
    assert pool.allocate(1) is None
    pool.acknowledge(3)
    assert (pool.num_free, pool.num_fenced) == (2, 1)
    pool.check()
    assert set(pool.allocate(2) or ()) == {a, c}
    pool.acknowledge(2)  # old news
    assert pool.num_fenced == 1
    pool.acknowledge(9)
    assert pool.allocate(1) == (b,)
    pool.check()


def test_a_shared_block_stays_until_its_last_holder_leaves() -> None:
    pool = BlockPool(1, 16)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.share(blocks)
    pool.release(blocks, fence_step=7)
    assert pool.num_active == 1
    pool.check()
    # The last holder touched it last in step 2, but a holder before it did so in step 7.
    pool.acknowledge(2)
    pool.release(blocks, fence_step=2)
    assert pool.num_fenced == 1
    pool.acknowledge(6)
    assert pool.num_free == 0
    pool.acknowledge(7)
    assert pool.num_free == 1
    # The fence of an earlier life does not bind the next one.
    assert pool.allocate(1) == blocks
    pool.release(blocks, fence_step=0)
    assert pool.num_free == 1


@pytest.mark.parametrize("bad", [(9,), (-1,), (2,)])
def test_releasing_what_is_not_held_is_refused_by_name(bad: tuple[int, ...]) -> None:
    pool = BlockPool(3, 16)
    held = pool.allocate(2)
    assert held == (0, 1)
    with pytest.raises(BlockNotHeld, match=f"block {bad[0]} ") as caught:
        pool.release((*held, *bad), 0)
    assert caught.value.block_id == bad[0]
    assert pool.num_active == 2, "nothing is changed by a refused release"
    with pytest.raises(BlockNotHeld):
        pool.share(bad)


def test_releasing_twice_is_refused() -> None:
    pool = BlockPool(2, 16)
    pool.allocate(1)
    with pytest.raises(BlockNotHeld):
        pool.release((0, 0), 0)
    pool.release((0,), 0)
    with pytest.raises(BlockNotHeld, match="block 0 cannot be released: it is not held"):
        pool.release((0,), 0)
    pool.check()


def test_the_block_released_last_is_reused_first() -> None:
    pool = BlockPool(8, 16)
    pool.allocate(5)
    pool.release((3,), 0)
    pool.release((1,), 0)
    assert pool.allocate(2) == (1, 3)


def test_check_sees_a_lost_and_a_doubled_block() -> None:
    pool = BlockPool(3, 16)
    pool._free.pop()
    with pytest.raises(AssertionError, match="block 0 is lost"):
        pool.check()
    pool._free.extend((0, 0))
    with pytest.raises(AssertionError, match="block 0 is free and also free"):
        pool.check()


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0)])
def test_a_pool_needs_blocks_with_slots(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(num_blocks, block_size)


def test_random_use_keeps_every_block_in_one_state() -> None:
    rng = random.Random(1)
    pool = BlockPool(12, 4)
    held: list[int] = []
    step = 0
    for _ in range(3000):
        action = rng.randrange(4)
        if action == 0:
            held.extend(pool.allocate(rng.randrange(4)) or ())
        elif action == 1 and held:
            block = held.pop(rng.randrange(len(held)))
            pool.release((block,), step + rng.randrange(2))
        elif action == 2 and held:
            block = rng.choice(held)
            pool.share((block,))
            held.append(block)
        else:
            step += 1
            pool.acknowledge(step - 1)
        pool.check()
        assert pool.held() == {block: held.count(block) for block in set(held)}
        counts = pool.counts()
        assert counts.free + counts.active + counts.fenced + counts.cached == counts.total == 12


def published(pool: BlockPool, count: int) -> tuple[int, ...]:
    """Blocks held once whose content is to be kept."""
    block_ids = pool.allocate(count) or ()
    for block_id in block_ids:
        pool.publish(block_id)
    return block_ids


def test_published_blocks_are_kept_until_no_free_one_is_left() -> None:
    reclaimed: list[int] = []
    pool = BlockPool(4, 16, reclaimed.append)
    first, second = published(pool, 2)
    pool.release((second, first), 0)
    assert (pool.num_free, pool.num_cached, pool.num_available) == (2, 2, 4)
    pool.check()
    assert not {first, second} & set(pool.allocate(2) or ())
    assert reclaimed == []
    assert pool.allocate(3) is None
    assert pool.allocate(2) == (second, first)
    assert reclaimed == [second, first], "the one released first goes first"
    pool.release((first,), 0)
    assert pool.num_free == 1, "whoever has it now has not published it"
    pool.check()


def test_a_kept_block_is_shared_again_and_moves_to_the_end() -> None:
    pool = BlockPool(3, 16)
    block_ids = published(pool, 3)
    pool.release(block_ids, 0)
    assert pool.share(block_ids[:1]) == 1
    assert pool.share(block_ids[:1]) == 0
    assert (pool.num_cached, pool.num_active) == (2, 1)
    pool.release(block_ids[:1], 0)
    pool.release(block_ids[:1], 0)
    assert pool.reclaim_order() == [*block_ids[1:], block_ids[0]]
    pool.check()


def test_a_published_block_is_kept_once_its_fence_opens() -> None:
    pool = BlockPool(2, 16)
    kept, plain = pool.allocate(2) or ()
    pool.publish(kept)
    pool.release((kept, plain), fence_step=3)
    assert (pool.num_fenced, pool.num_available) == (2, 0)
    pool.acknowledge(3)
    assert (pool.num_free, pool.num_cached) == (1, 1)
    pool.check()


def test_a_block_revived_behind_its_fence_is_fenced_again() -> None:
    pool = BlockPool(2, 16)
    block_ids = published(pool, 1)
    pool.release(block_ids, fence_step=5)
    assert pool.share(block_ids) == 1
    assert (pool.num_fenced, pool.num_active) == (0, 1)
    pool.check()
    # Its new holder touched it in no step; the one before did in step 5.
    pool.release(block_ids, fence_step=0)
    assert pool.num_fenced == 1
    pool.check()
    pool.acknowledge(4)
    assert pool.num_cached == 0
    pool.acknowledge(5)
    assert pool.num_cached == 1


def test_fences_open_in_their_order() -> None:
    pool = BlockPool(3, 16)
    child, parent, other = published(pool, 3)
    pool.release((other,), fence_step=4)
    pool.release((parent,), fence_step=6)
    pool.release((child,), fence_step=5)
    assert pool.reclaim_order() == [other, child, parent]
    pool.acknowledge(6)
    assert pool.reclaim_order() == [other, child, parent]


def test_nothing_is_kept_after_all_is_unpublished() -> None:
    pool = BlockPool(3, 16)
    cached, fenced, held = published(pool, 3)
    pool.release((cached,), 0)
    pool.release((fenced,), fence_step=2)
    pool.unpublish_all()
    pool.check()
    assert (pool.num_free, pool.num_fenced, pool.num_active) == (1, 1, 1)
    pool.acknowledge(2)
    pool.release((held,), 0)
    assert pool.num_free == 3


def test_only_held_blocks_are_published_and_only_kept_ones_shared() -> None:
    pool = BlockPool(2, 16)
    with pytest.raises(BlockNotHeld, match="block 0 cannot be published"):
        pool.publish(0)
    block_ids = pool.allocate(1) or ()
    pool.release(block_ids, fence_step=9)
    with pytest.raises(BlockNotHeld, match="block 0 cannot be shared"):
        pool.share(block_ids)


def test_check_sees_a_block_that_is_kept_wrongly() -> None:
    pool = BlockPool(2, 16)
    (block_id,) = published(pool, 1)
    pool.release((block_id,), 0)
    pool._published[block_id] = False
    with pytest.raises(AssertionError, match="block 0 is cached and not published"):
        pool.check()
    pool._published[1] = pool._published[0] = True
    with pytest.raises(AssertionError, match="block 1 is free and published"):
        pool.check()
