"""Who waits for any group, against a plain list that is sorted anew each time."""

import random
from collections import Counter

import pytest

from blockyard.scheduler.asking import Asking
from blockyard.scheduler.global_queue import GlobalQueue

Queue = GlobalQueue[Asking]


def asking(
    name: str, tokens: int = 10, priority: int = 0, tenant: str = "", at: float = 0
) -> Asking:
    return Asking(name, tokens, priority, tenant, arrived_at=at)


def drain(queue: Queue) -> list[str]:
    """Serve everybody, each charged with its tokens."""
    served = []
    while (head := queue.head()) is not None:
        queue.remove(head)
        queue.charge(head.priority, head.tenant, head.tokens, 0)
        served.append(head.request_id)
    return served


def filled(*members: Asking) -> Queue:
    queue = Queue()
    for member in members:
        queue.push(member)
    return queue


def test_the_urgent_come_first_then_the_old_whenever_they_ask() -> None:
    queue = filled(asking("late", at=2), asking("urgent", priority=1, at=9), asking("early", at=1))
    assert drain(queue) == ["urgent", "early", "late"]


def test_tenants_take_turns_by_tokens_however_many_one_sends() -> None:
    crowd = [asking(f"a{n}", tenant="a", at=n) for n in range(6)]
    queue = filled(*crowd, asking("b0", 30, tenant="b", at=9), asking("b1", tenant="b", at=9.5))
    # b's first is as long as three of a's: it waits until a has had as much.
    assert drain(queue) == ["a0", "b0", "a1", "a2", "a3", "b1", "a4", "a5"]


def test_answers_count_against_a_tenant_too() -> None:
    queue = filled(asking("a", tenant="a", at=0), asking("b", tenant="b", at=1))
    queue.charge(0, "a", 0, 50)
    assert drain(queue) == ["b", "a"]


def test_what_others_have_bound_counts_before_anybody_asks() -> None:
    queue = Queue(since=5.0)
    queue.take_over(0, "a", 15)
    queue.take_over(1, "b", 1000)
    for number in range(3):
        queue.push(asking(f"a{number}", tenant="a", at=number))
        queue.push(asking(f"b{number}", tenant="b", at=number))
    queue.push(asking("new", tenant="c", at=5.0))
    # Of those who waited elsewhere each tenant has its due; a newcomer saves nothing up.
    assert drain(queue) == ["b0", "new", "b1", "a0", "b2", "a1", "a2"]


def test_a_full_queue_sheds_the_youngest_of_the_largest_tenant_of_the_least_urgent() -> None:
    waiting = [
        asking("x", priority=3, tenant="a"),
        *(asking(f"a{n}", tenant="a", at=n) for n in range(3)),
        asking("b", tenant="b", at=9),
    ]
    queue = filled(*waiting)
    unwanted = asking("low", priority=-1, tenant="new")
    assert queue.sheds(unwanted) is unwanted
    greedy = asking("a3", tenant="a", at=10)
    assert queue.sheds(greedy) is greedy
    assert queue.sheds(asking("c", tenant="c")).request_id == "a2"
    assert queue.sheds(asking("b1", tenant="b", at=10)).request_id == "a2"
    equal = asking("b2", tenant="b", at=10)
    queue.push(asking("b1", tenant="b", at=10))
    assert queue.sheds(equal) is equal  # with it b would have as many as a
    assert queue.sheds(asking("y", priority=3, tenant="a")).request_id == "a2"


def test_who_is_due_is_found_once_and_looked_at_again_if_it_is_not_yet_late() -> None:
    early, late, gone = (asking(name, at=n) for n, name in enumerate(("early", "late", "gone")))
    queue = Queue()
    for member, due in ((early, 1.0), (late, 2.0), (gone, 1.5)):
        queue.push(member, due)
    queue.remove(gone)
    assert queue.overdue(0.5, lambda each: 0.0) == []
    later = {early: 1.0, late: 4.0}
    assert queue.overdue(3.0, later.__getitem__) == [early]
    assert queue.overdue(3.5, later.__getitem__) == []
    assert queue.overdue(4.0, later.__getitem__) == [late]


def test_places_count_the_urgent_the_older_and_the_turns_of_others() -> None:
    own = [asking(f"a{n}", tenant="a", at=n) for n in range(3)]
    queue = filled(*own, *(asking(f"b{n}", tenant="b", at=n) for n in range(9)))
    queue.push(asking("urgent", priority=1))
    assert [queue.place_of(member) for member in own] == [2, 4, 6]
    assert queue.tokens_before(0) == 130 and queue.tokens_before(1) == 10
    assert queue.tokens_before(-1) == 130 and queue.tokens_before(2) == 0


def test_nobody_is_queued_twice_nor_leaves_twice() -> None:
    member = asking("a")
    queue = filled(member)
    with pytest.raises(ValueError, match="already"):
        queue.push(member)
    queue.remove(member)
    with pytest.raises(ValueError, match="not in the queue"):
        queue.remove(member)


def test_a_tenant_that_comes_back_keeps_its_debts_and_has_saved_nothing() -> None:
    queue = filled(asking("a0", 100, tenant="a", at=0), asking("b0", 10, tenant="b", at=1))
    assert drain(queue) == ["a0", "b0"]
    for member in (asking("b1", tenant="b", at=3), asking("a1", tenant="a", at=2)):
        queue.push(member)
    queue.push(asking("new", tenant="new", at=4))
    assert drain(queue) == ["b1", "new", "a1"]


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_and_goes_the_order_is_that_of_the_law(seed: int) -> None:
    drawn = random.Random(seed)
    queue, living = Queue(), list[Asking]()
    for number in range(1500):
        roll = drawn.random()
        if roll < 0.55 or not living:
            tenant, priority = drawn.choice("abcd"), drawn.choice((0, 0, 1, -3))
            at = number - drawn.choice((0, 0, 40))
            living.append(asking(f"r{number}", drawn.randint(1, 50), priority, tenant, at))
            queue.push(living[-1])
        elif roll < 0.85:
            head = queue.head()
            assert head is not None and head.priority == max(each.priority for each in living)
            line = [each for each in living if each.priority == head.priority]
            charged = queue._lines[head.priority].counters.charged
            assert charged(head.tenant) == min(charged(each.tenant) for each in line)
            own = [each for each in line if each.tenant == head.tenant]
            assert head is min(own, key=lambda each: (each.arrived_at, each.number))
            queue.remove(head)
            living.remove(head)
            queue.charge(head.priority, head.tenant, head.tokens, 0)
        elif roll < 0.95:
            queue.remove(living.pop(drawn.randrange(len(living))))
        else:
            newcomer = asking("new", 1, drawn.choice((0, 1, -3, -9)), drawn.choice("abcde"), 1e9)
            check_shed(queue, living, newcomer)
        assert len(queue) == len(living)
        if number % 20 == 0:
            queue.check()
            assert queue.num_tokens == sum(each.tokens for each in living)
            assert queue.oldest_at() == min((e.arrived_at for e in living), default=None)


def check_shed(queue: Queue, living: list[Asking], newcomer: Asking) -> None:
    lowest = min(each.priority for each in living)
    line = [each for each in living if each.priority == lowest]
    crowd = Counter(each.tenant for each in line)
    shed = queue.sheds(newcomer)
    if newcomer.priority < lowest or (
        newcomer.priority == lowest and crowd[newcomer.tenant] + 1 >= max(crowd.values())
    ):
        assert shed is newcomer
        return
    assert shed in line and crowd[shed.tenant] == max(crowd.values())
    own = [each for each in line if each.tenant == shed.tenant]
    assert shed is max(own, key=lambda each: (each.arrived_at, each.number))


def test_what_has_left_does_not_pile_up() -> None:
    queue = filled(asking("stays", tenant="a"))
    for number in range(5000):
        member = asking(f"r{number}", tenant="ab"[number % 2], at=number)
        queue.push(member, due_at=1e9)
        queue.remove(member)
    (line,) = queue._lines.values()
    heaps = [*(len(each.oldest) + len(each.youngest) for each in line.tenants.values())]
    heaps += [len(line._turns), len(line._crowds), len(queue._due)]
    assert max(heaps) < 400
