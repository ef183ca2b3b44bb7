import random

import pytest

from blockyard.scheduler.simulated.memory_timeline import MemoryTimeline, SlotState


def held(filled: float) -> SlotState:
    return SlotState(filled, 0, 0, 0, 0, 0, 1)


def test_intervals_merge_and_lose_nothing() -> None:
    timeline = MemoryTimeline(num_intervals=8)
    rng = random.Random(1)
    now, total = 0.0, 0.0
    while now < 60.0:
        end = now + rng.expovariate(2.0)
        level = rng.randrange(100)
        timeline.add(now, end, held(level).times(end - now))
        total += level * (end - now)
        now = end
    whole = 8 * timeline.width_seconds
    assert whole >= now
    means = timeline.means(whole)
    assert sum(state.filled for _, state in means) * timeline.width_seconds == pytest.approx(total)
    assert sum(state.running for _, state in means) * timeline.width_seconds == pytest.approx(now)


def test_a_level_shows_where_it_was() -> None:
    timeline = MemoryTimeline(num_intervals=16)
    timeline.add(0.25, 0.5, held(10).times(0.25))
    means = timeline.means(0.5)
    assert [at for at, _ in means] == [0.03125 + 0.0625 * index for index in range(8)]
    assert [state.filled for _, state in means] == pytest.approx([0.0] * 4 + [10.0] * 4)


def test_groups_add_up_in_any_order() -> None:
    timeline = MemoryTimeline(num_intervals=4)
    timeline.add(0.0, 2.0, held(3).times(2.0))
    timeline.add(0.0, 1.0, held(4).times(1.0))
    timeline.add(1.0, 2.0, held(4).times(1.0))
    assert [state.filled for _, state in timeline.means(2.0)] == [pytest.approx(7.0)] * 4


def test_numbers_of_intervals_that_cannot_be_halved() -> None:
    with pytest.raises(ValueError, match="even"):
        MemoryTimeline(num_intervals=3)
