import random

import pytest

from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.queues import WaitingQueue
from blockyard.scheduler.request import Request, RequestSpec, RequestState
from blockyard.scheduler.sampling import SamplingParams


def request(sequence: int, priority: int = 0, parked: bool = False) -> Request:
    return Request(
        spec=RequestSpec(f"r{sequence}", (1,), SamplingParams(), priority),
        sequence=sequence,
        max_tokens=1,
        table=BlockTable(4),
        arrived_at=0.0,
        state=RequestState.PARKED if parked else RequestState.WAITING,
    )


def test_priority_then_arrival_and_parked_before_younger() -> None:
    queue = WaitingQueue()
    for item in (request(5), request(9, 1), request(3, parked=True), request(8, 1), request(4)):
        queue.push(item)
    assert (queue.num_waiting, queue.num_parked, len(queue)) == (4, 1, 5)
    assert [queue.pop().sequence for _ in range(5)] == [8, 9, 3, 4, 5]
    assert queue.head() is None
    with pytest.raises(IndexError):
        queue.pop()


def test_removal_by_id_in_the_middle_and_at_the_head() -> None:
    queue = WaitingQueue()
    for sequence in range(4):
        queue.push(request(sequence, parked=sequence == 0))
    removed = queue.remove("r0")
    assert removed is not None and removed.sequence == 0
    assert queue.remove("r0") is None
    assert queue.num_parked == 0
    queue.remove("r2")
    queue.check()
    assert [queue.pop().sequence for _ in range(2)] == [1, 3]


def test_the_same_id_may_come_back_as_another_request() -> None:
    queue = WaitingQueue()
    old, other = request(1), request(2)
    queue.push(old)
    queue.push(other)
    queue.remove("r1")
    new = request(1, priority=-1)
    queue.push(new)
    assert [queue.pop(), queue.pop()] == [other, new]
    with pytest.raises(IndexError):
        queue.pop()


def test_an_id_is_queued_once() -> None:
    queue = WaitingQueue()
    queue.push(request(1))
    with pytest.raises(ValueError, match="r1"):
        queue.push(request(1))


def test_removed_requests_do_not_pile_up() -> None:
    queue = WaitingQueue()
    for sequence in range(5000):
        queue.push(request(sequence))
        if sequence >= 10:
            queue.remove(f"r{sequence}")
    assert len(queue) == 10
    assert len(queue._heap) < 100
    assert [queue.pop().sequence for _ in range(10)] == list(range(10))


def test_random_use_matches_a_sorted_list() -> None:
    rng = random.Random(3)
    queue = WaitingQueue()
    mirror: list[Request] = []
    for sequence in range(2000):
        action = rng.random()
        if action < 0.5 or not mirror:
            mirror.append(request(sequence, rng.randrange(3), rng.random() < 0.3))
            queue.push(mirror[-1])
        elif action < 0.75:
            best = min(mirror, key=lambda member: member.urgency)
            mirror.remove(best)
            assert queue.pop() is best
            if rng.random() < 0.3:  # set aside for a moment, then put back
                mirror.append(best)
                queue.push(best)
        else:
            gone = mirror.pop(rng.randrange(len(mirror)))
            assert queue.remove(gone.request_id) is gone
        queue.check()
        assert len(queue) == len(mirror)
