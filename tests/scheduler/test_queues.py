import random

import pytest

from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.queues import WaitingQueue
from blockyard.scheduler.request import Request, RequestSpec, RequestState
from blockyard.scheduler.sampling import SamplingParams


def request(sequence: int, priority: int = 0, parked: bool = False, tenant: str = "") -> Request:
    return Request(
        spec=RequestSpec(f"r{sequence}", (1,), SamplingParams(), priority, tenant),
        sequence=sequence,
        max_tokens=1,
        table=BlockTable(4),
        arrived_at=0.0,
        tokens=[1] * (1 + sequence % 5),
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


def test_it_is_never_the_turn_of_one_that_is_held() -> None:
    queue = WaitingQueue()
    held, other = request(0, parked=True), request(7)
    queue.push(held)
    queue.push(other)
    # Its first entry in the heap stays behind, until somebody looks at it.
    assert queue.remove("r0") is held
    held.held = True
    queue.push(held)
    queue.check()
    assert (len(queue), queue.num_parked, queue.num_tokens) == (2, 1, len(other.tokens))
    assert queue.pop() is other and queue.head() is None
    queue.check()
    for number in range(100):  # enough of them to have the heaps made anew
        queue.push(request(100 + number))
    for number in range(100):
        queue.remove(f"r{100 + number}")
    queue.check()
    assert queue.head() is None and queue.ordered() == [held]
    assert queue.remove("r0") is held
    held.held = False
    queue.push(held)
    queue.check()
    assert queue.pop() is held and not queue


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
    assert queue.num_entries < 100
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


def served(queue: WaitingQueue, count: int, cost: int = 10) -> str:
    """The tenants whose turn it is, `cost` tokens being computed for each request."""
    tenants = []
    for _ in range(count):
        item = queue.pop()
        queue.charge(item, cost, 0)
        tenants.append(item.spec.tenant)
    return "".join(tenants)


def test_tenants_take_turns_and_a_flood_delays_nobody_else() -> None:
    queue = WaitingQueue()
    for sequence in range(50):
        queue.push(request(sequence, tenant="a"))
    queue.push(request(50, tenant="b"))
    queue.push(request(51, tenant="b"))
    queue.push(request(52, 1, tenant="a"))
    assert served(queue, 6) == "aababa"
    queue.check()


def test_turns_count_tokens_and_not_requests() -> None:
    queue = WaitingQueue()
    for sequence in range(0, 60, 2):
        queue.push(request(sequence, tenant="a"))
        queue.push(request(sequence + 1, tenant="b"))
    for _ in range(20):
        item = queue.pop()
        queue.charge(item, 10 if item.spec.tenant == "a" else 40, 0)
    waiting = [member.spec.tenant for member in queue.members()]
    assert 30 - waiting.count("a") == pytest.approx(4 * (30 - waiting.count("b")), abs=4)


def test_set_aside_and_put_back_keeps_its_turn() -> None:
    queue = WaitingQueue()
    queue.push(request(0, tenant="a"))
    queue.push(request(1, tenant="b"))
    queue.charge(request(1, tenant="b"), 100, 0)
    for _ in range(2000):
        first, second = queue.pop(), queue.pop()
        assert (first.spec.tenant, second.spec.tenant) == ("a", "b")
        queue.push(first)
        queue.push(second)
        queue.charge(first, 0, 0)
    assert (queue.charged(first), queue.charged(second)) == (0, 100)
    assert queue.num_entries == 2


def test_one_who_was_parked_comes_before_the_younger_of_any_tenant() -> None:
    queue = WaitingQueue()
    queue.push(request(4, tenant="a"))
    queue.push(request(6, tenant="b"))
    queue.push(request(7, tenant="b"))
    queue.charge(request(4, tenant="a"), 1000, 0)
    queue.push(request(5, parked=True, tenant="a"))
    assert [queue.pop().sequence for _ in range(4)] == [5, 6, 7, 4]
    queue.push(request(3, tenant="b"))
    queue.push(request(5, parked=True, tenant="a"))
    assert [queue.pop().sequence for _ in range(2)] == [3, 5]


def test_many_priorities_cost_no_memory() -> None:
    queue = WaitingQueue()
    for sequence in range(1000):
        queue.push(request(sequence, priority=sequence % 500, tenant="ab"[sequence % 2]))
        queue.charge(queue.pop(), 10, 0)
    assert len(queue._lines) <= 64
    queue.check()


def test_random_use_with_tenants_matches_the_rule_as_written() -> None:
    rng = random.Random(4)
    queue = WaitingQueue()
    mirror: list[Request] = []

    def expected() -> Request:
        """Of the highest priority: by charge, then by age; unless somebody older is parked."""
        best = max(member.spec.priority for member in mirror)
        line = [member for member in mirror if member.spec.priority == best]
        parked = [member for member in line if member.state is RequestState.PARKED]
        fresh = [member for member in line if member.state is RequestState.WAITING]
        turn = min(fresh, key=lambda m: (queue.charged(m), m.sequence), default=None)
        oldest = min(parked, key=lambda m: m.sequence, default=None)
        if turn is None or (oldest is not None and oldest.sequence < turn.sequence):
            assert oldest is not None
            return oldest
        return turn

    for sequence in range(4000):
        action = rng.random()
        if action < 0.45 or not mirror:
            tenant = rng.choice("abcd")
            mirror.append(request(sequence, rng.randrange(2), rng.random() < 0.2, tenant))
            queue.push(mirror[-1])
        elif action < 0.75:
            best = expected()
            mirror.remove(best)
            assert queue.head() is best
            assert queue.pop() is best
            queue.charge(best, rng.randrange(30), rng.randrange(30))
            if rng.random() < 0.3:  # set aside for a moment, then put back
                mirror.append(best)
                queue.push(best)
        elif action < 0.9:
            gone = mirror.pop(rng.randrange(len(mirror)))
            assert queue.remove(gone.request_id) is gone
        else:
            queue.charge(rng.choice(mirror), rng.randrange(30), rng.randrange(30))
        queue.check()
    assert queue.num_entries < 3 * len(mirror) + 100


def test_the_order_as_told_is_the_order_of_service() -> None:
    rng = random.Random(6)
    queue = WaitingQueue()
    for sequence in range(200):
        item = request(sequence, rng.randrange(2), rng.random() < 0.2, rng.choice("abcd"))
        queue.push(item)
        queue.charge(item, rng.randrange(30), 0)
    told = queue.ordered()
    assert [queue.pop() for _ in range(200)] == told
    assert queue.ordered() == []


def test_tokens_ahead_are_those_of_its_priority_and_above() -> None:
    queue = WaitingQueue()
    for sequence, priority in ((0, 0), (1, 0), (2, 1), (3, -1)):
        queue.push(request(sequence, priority))
    assert [queue.tokens_ahead(priority) for priority in (2, 1, 0, -1)] == [0, 3, 6, 10]
    queue.remove("r1")
    queue.pop()
    assert queue.tokens_ahead(0) == 1
