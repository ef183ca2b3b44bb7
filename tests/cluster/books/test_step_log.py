"""Steps as they are remembered for who fits costs to them."""

import pytest

from blockyard.cluster.books.step_log import StepLog, StepRecord
from blockyard.scheduler.plan import StepPlan


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def plan(*rows: tuple[int, int]) -> StepPlan:
    """A plan whose rows compute a count of tokens from a start on."""
    starts, counts = zip(*rows, strict=True)
    handles, tokens = tuple(range(len(rows))), (0,) * sum(counts)
    return StepPlan(1, (), (), (), handles, starts, counts, (True,) * len(rows), tokens)


def test_a_step_is_told_by_its_size_and_the_time_until_the_next_may_begin() -> None:
    clock = Time()
    log = StepLog(clock)
    assert log.take() == ()
    log.began(plan((0, 10), (30, 1)), 1.0)
    clock.now = 3.0
    log.ended(more=True)
    # The next one is planned a little later, but nobody else has used that time.
    log.began(plan((10, 1)), 3.25)
    clock.now = 4.0
    log.ended(more=False)
    assert log.take() == (
        StepRecord(2, 11, 41, 10 * 5.0 + 1 * 30.5, 2.0),
        StepRecord(1, 1, 11, 10.5, 1.0),
    )
    assert log.take() == ()


def test_the_wait_for_somebody_to_come_is_in_no_step() -> None:
    clock = Time()
    log = StepLog(clock)
    log.take()
    for begin, end in ((1.0, 2.0), (9.0, 9.5)):
        log.began(plan((5, 1)), begin)
        clock.now = end
        log.ended(more=False)
    assert [record.seconds for record in log.take()] == [1.0, 0.5]


def test_of_two_steps_under_way_the_second_begins_with_the_end_of_the_first() -> None:
    clock = Time()
    log = StepLog(clock)
    log.take()
    log.began(plan((5, 1)), 1.0)
    log.began(plan((6, 1)), 1.1)
    for end in (2.0, 2.5):
        clock.now = end
        log.ended(more=False)
    assert [record.seconds for record in log.take()] == pytest.approx([1.0, 0.5])


def test_nothing_is_kept_for_nobody() -> None:
    clock = Time()
    log = StepLog(clock)
    log.began(plan((5, 1)), 0.0)
    # Who asks now does not get the step that was begun before.
    assert log.take() == ()
    log.ended(more=True)
    assert log.take() == ()
    log.began(plan((5, 1)), 61.0)
    clock.now = 62.0
    log.ended(more=True)
    assert log.take() == ()


def test_steps_of_a_lost_group_never_end() -> None:
    clock = Time()
    log = StepLog(clock)
    log.take()
    log.began(plan((5, 1)), 1.0)
    log.abandoned()
    log.began(plan((7, 1)), 5.0)
    clock.now = 6.0
    log.ended(more=True)
    assert [record.seconds for record in log.take()] == [1.0]
