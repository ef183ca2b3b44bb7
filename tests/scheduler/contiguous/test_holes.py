from hypothesis import given
from hypothesis import strategies as st

from blockyard.scheduler.contiguous.holes import HoleMap


class SlowHoles:
    """The slow twin: one flag a slot."""

    def __init__(self, capacity: int) -> None:
        self.free = [True] * capacity

    def holes(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for slot, free in enumerate(self.free):
            if not free:
                continue
            if found and sum(found[-1]) == slot:
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((slot, 1))
        return found

    def take(self, size: int) -> int | None:
        for start, room in self.holes():
            if room >= size:
                self.free[start : start + size] = [False] * size
                return start
        return None

    def give(self, start: int, size: int) -> None:
        self.free[start : start + size] = [True] * size


@given(
    st.integers(1, 60),
    st.lists(st.one_of(st.integers(1, 20), st.floats(0, 0.999)), max_size=60),
)
def test_first_fit_and_merging_are_those_of_the_slow_twin(
    capacity: int, actions: list[int | float]
) -> None:
    fast, slow = HoleMap(capacity), SlowHoles(capacity)
    held: list[tuple[int, int]] = []
    for action in actions:
        if isinstance(action, int):
            start = fast.take(action)
            assert start == slow.take(action)
            if start is not None:
                held.append((start, action))
        elif held:
            start, size = held.pop(int(action * len(held)))
            fast.give(start, size)
            slow.give(start, size)
        fast.check()
        assert list(fast) == slow.holes()
        assert fast.total_free == sum(slow.free)
        assert fast.largest == max((size for _, size in slow.holes()), default=0)


def test_a_comb_of_holes_stays_shallow() -> None:
    holes = HoleMap(1 << 16)
    starts = [holes.take(16) for _ in range(4096)]
    for start in starts[::2]:
        assert start is not None
        holes.give(start, 16)

    def depth(node: object) -> int:
        if node is None:
            return 0
        return 1 + max(depth(getattr(node, "left")), depth(getattr(node, "right")))  # noqa: B009

    assert len(holes) == 2048
    assert depth(holes._root) < 44  # a random tree of 2,048 is about 26 deep; a list 2,048
    assert holes.take(17) is None
    assert holes.take(16) == 0
