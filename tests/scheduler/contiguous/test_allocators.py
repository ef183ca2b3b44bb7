import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from blockyard.scheduler.contiguous.allocators import POLICIES, ContiguousAllocator, make_allocator
from blockyard.scheduler.contiguous.books import ContiguousBooks


def books_add_up(books: ContiguousBooks) -> bool:
    parts = books.filled + books.reservation + books.internal + books.free
    return parts == books.capacity and min(books.reservation, books.internal, books.filled) >= 0


class ContiguousMachine(RuleBasedStateMachine):
    """Any order of calls, against a plain table of who holds how many tokens."""

    allocator: ContiguousAllocator

    @initialize(
        policy=st.sampled_from(POLICIES), capacity=st.integers(1, 200), limit=st.integers(1, 70)
    )
    def begin(self, policy: str, capacity: int, limit: int) -> None:
        self.allocator = make_allocator(policy, capacity, limit)
        self.tokens: dict[str, tuple[int, int]] = {}
        self.arrived = 0
        self.refused = 0

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        final = data.draw(st.integers(1, self.allocator.limit))
        now = data.draw(st.integers(0, final))
        self.arrived += 1
        name = f"r{self.arrived}"
        fits = self.allocator.fits(now, final)
        assert self.allocator.allocate(name, now, final) is fits
        if fits:
            self.tokens[name] = (now, final)
        else:
            self.refused += 1

    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        growing = [name for name, (now, final) in self.tokens.items() if now < final]
        if not growing:
            return
        name = data.draw(st.sampled_from(growing))
        now, final = self.tokens[name]
        more = data.draw(st.integers(1, final - now))
        if self.allocator.grow(name, more):
            self.tokens[name] = (now + more, final)
        else:
            assert self.allocator.policy == "pow2"  # the others have reserved it
            self.refused += 1

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.tokens:
            name = data.draw(st.sampled_from(sorted(self.tokens)))
            self.allocator.free(name)
            del self.tokens[name]

    @invariant()
    def books_are_true(self) -> None:
        if not hasattr(self, "allocator"):
            return
        self.allocator.check()
        books = self.allocator.books()
        assert books_add_up(books)
        assert books.filled == sum(now for now, _ in self.tokens.values())
        assert (books.running, books.refusals) == (len(self.tokens), self.refused)
        assert (books.first_refusal is not None) is (self.refused > 0)
        if not self.tokens:
            assert (books.num_holes, books.largest_hole) == (1, books.capacity)
        if books.policy != "pow2":
            assert (books.internal, books.moves) == (0, 0)


ContiguousMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_any_order_of_calls = ContiguousMachine.TestCase


def test_the_limit_is_reserved_and_the_ninth_is_refused() -> None:
    # Llama-2-13B: memory for 8 requests at the limit, 24 come with 680 tokens each.
    allocator = make_allocator("max_seq_len", 16_384, 2048)
    admitted = sum(allocator.allocate(f"r{n}", 680, 680) for n in range(24))
    books = allocator.books()
    assert (admitted, books.filled, books.free, books.refusals) == (8, 5440, 0, 16)
    assert books.reservation == 10_944
    refusal = books.first_refusal
    assert refusal is not None
    assert (refusal.needed, refusal.running, refusal.reserved_idle) == (2048, 8, 10_944)
    assert refusal.describe(819_200) == (
        "out of memory with 0.00 GB free: 1.68 GB needed in one piece, largest hole 0.00 GB, "
        "and 8.97 GB reserved but empty; 8 requests running"
    )


def test_the_oracle_fills_all_but_loses_to_holes() -> None:
    allocator = make_allocator("exact", 100, 60)
    for name, final in (("a", 20), ("b", 20), ("c", 20), ("d", 20), ("e", 20)):
        assert allocator.allocate(name, 5, final)
    allocator.free("b")
    allocator.free("d")
    assert not allocator.allocate("f", 1, 40)
    books = allocator.books()
    assert (books.free, books.largest_hole, books.external_fragmentation) == (40, 20, 0.5)
    assert books.first_fragmented is not None
    assert books.first_fragmented.by_fragmentation
    allocator.free("c")  # the three holes become one
    assert allocator.books().largest_hole == 60
    assert allocator.allocate("f", 1, 40)
    # Lowest hole first: f lies at 20, so 60..80 is left.
    assert allocator.books().largest_hole == 20


def test_powers_of_two_grow_by_moving_and_need_both_places_at_once() -> None:
    allocator = make_allocator("pow2", 24, 16)
    assert allocator.allocate("a", 5, 10)  # 8 slots
    assert allocator.books().internal == 0
    assert allocator.grow("a", 3)
    assert allocator.books().moves == 0
    assert allocator.grow("a")  # 16 slots behind the old 8
    books = allocator.books()
    assert (books.moves, books.moved_slots, books.free) == (1, 8, 8)
    assert (books.filled, books.reservation, books.internal) == (9, 1, 6)
    assert allocator.allocate("b", 4, 16)  # 4 slots in front
    assert not allocator.grow("b", 1)  # 8 are not in one piece
    assert allocator.books().filled == 13
    allocator.free("a")
    assert allocator.grow("b", 1)
    allocator.check()


def test_rounding_stops_at_the_limit() -> None:
    assert make_allocator("pow2", 100, 60).reservation(33, 40) == 60


@pytest.mark.parametrize("policy", POLICIES)
def test_misuse_is_told_and_changes_nothing(policy: str) -> None:
    allocator = make_allocator(policy, 64, 32)
    assert allocator.allocate("a", 2, 4)
    before = allocator.books()
    with pytest.raises(ValueError, match="has a piece already"):
        allocator.allocate("a", 1, 1)
    with pytest.raises(ValueError, match="limit of 32"):
        allocator.allocate("b", 1, 33)
    with pytest.raises(ValueError, match="ends at 4"):
        allocator.grow("a", 3)
    assert allocator.books() == before
    allocator.check()


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'buddy'.*max_seq_len, pow2, exact"):
        make_allocator("buddy", 1, 1)
