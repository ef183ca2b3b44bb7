"""Every group is full and somebody urgent comes: the central scheduler chooses who gives way."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from blockyard.cluster.books.central_books import CentralTally
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.ledger import MoveCounts, PreemptionCounts
from blockyard.scheduler.request import RequestSpec

pytestmark = pytest.mark.timeout(60)

VOCAB = 251
Spec = Callable[..., RequestSpec]
Collected = Callable[..., Awaitable[Any]]


@pytest.fixture
def ask(spec: Spec, begin: Any) -> Callable[..., Awaitable[Any]]:
    async def ask(
        name: str, prompt: int, max_tokens: int, priority: int = 0, start: int = 0
    ) -> Any:
        tokens = tuple((start + place) % VOCAB for place in range(prompt))
        return await begin(spec(name, tokens, max_tokens, priority))

    return ask


def standing(stack: Any, number: int) -> Any:
    return stack.central._members[f"group-{number}"].candidate.standing


async def held(stack: Any, number: int, clients: list[Any]) -> None:
    """Let a group's step wait once everybody has begun there, and the books tell of it."""
    group = stack.groups[number]
    await stack.until(lambda: all(len(client.tokens) > 3 for client in clients))
    group.workers[0].gate.clear()
    await stack.until(
        lambda: (
            (told := standing(stack, number)) is not None
            and {c.spec.request_id for c in clients} == {each.request_id for each in told.yielding}
        )
    )


async def fill(stack: Any, ask: Any, priority: int) -> list[Any]:
    """One more group, and two requests that it is full with."""
    await stack.add_group(num_blocks=36)
    number = len(stack.groups)
    clients = [
        await ask(f"g{number}-{n}", 56, 80, priority, 60 * number + 30 * n) for n in range(2)
    ]
    await held(stack, number - 1, clients)
    return clients


def release(stack: Any) -> None:
    for group in stack.groups:
        group.workers[0].gate.set()


async def until_known(stack: Any) -> Any:
    """The central scheduler's books, once they have all that the groups have."""

    def known() -> bool:
        books = stack.central.books().preempted
        told = [group.server.ledger().preempted for group in stack.groups]
        return bool(
            books.ordered == sum(each.ordered for each in told)
            and books.moved == sum(each.moved for each in told)
            and books.recomputed == sum(each.recomputed for each in told)
        )

    await stack.until(known)
    return await stack.dispatcher.central_books()


async def test_an_urgent_one_goes_where_the_least_urgent_run(stack: Any, ask: Any) -> None:
    clients = await fill(stack, ask, priority=2)
    clients += await fill(stack, ask, priority=1)
    clients += await fill(stack, ask, priority=2)
    urgent = await ask("urgent", 60, 20, priority=5, start=200)
    assert stack.groups[1].server.engine.serves("urgent")
    release(stack)
    await asyncio.gather(*(client.check() for client in (urgent, *clients)))
    books = await until_known(stack)
    assert books.decisions == len(books.recent)
    way, *later = books.recent
    # Once they have grown, of equals one may have to wait for the other, and be passed on.
    assert all(other.came_from for other in later)
    assert (way.group_id, way.came_from, way.for_priority, way.priority) == ("group-1", "", 5, 1)
    assert way.recomputed == 1 <= stack.groups[1].server.ledger().preempted.ordered


async def test_one_that_waits_in_vain_is_passed_on(stack: Any, ask: Any) -> None:
    clients = await fill(stack, ask, priority=5)
    clients += await fill(stack, ask, priority=0)
    await stack.stop_central()  # or it would not have been sent to the wrong group
    urgent = await ask("urgent", 60, 20, priority=5, start=200)
    assert stack.groups[0].server.engine.serves("urgent")
    await stack.start_central()
    await stack.until(lambda: len(stack.central.group_ids) == 2)
    release(stack)
    await urgent.check()
    assert not all(client.reading.done() for client in clients[:2]), "it waited for its equals"
    await asyncio.gather(*(client.check() for client in clients))
    books = await until_known(stack)
    passed = {(way.came_from, way.group_id) for way in books.recent if way.came_from}
    assert passed == {("group-0", "group-1")}
    assert books.relieved >= 1


async def test_a_victim_goes_on_at_a_group_with_too_little_room_for_the_urgent_one(
    stack: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RateMeter, "observe_step", lambda *told: None)
    rates = RateMeter(0, prefill_tokens_per_second=1000.0)
    full = await stack.add_group(num_blocks=66)
    full.server.engine.scheduler.batch.parking.rates = rates
    clients = [await ask(f"r{n}", 28, 60, start=30 * n) for n in range(7)]
    await held(stack, 0, clients)
    helper = await stack.add_group(num_blocks=64)
    helper.server.engine.scheduler.batch.parking.rates = rates
    clients.append(await ask("other", 60, 20, start=211))
    assert helper.server.engine.serves("other")
    await stack.until(lambda: len(clients[-1].tokens) > 3)
    helper.workers[0].gate.clear()
    urgent = await ask("urgent", 200, 20, priority=5, start=237)  # 50 blocks; the helper has 48
    assert full.server.engine.serves("urgent")
    release(stack)
    await asyncio.gather(*(client.check() for client in (urgent, *clients)))
    books = await until_known(stack)
    assert books.moved == full.server.ledger().preempted.moved >= 1
    assert helper.server.ledger().recomputed_tokens > 0


async def test_books_keep_what_groups_did_that_have_gone_or_count_anew() -> None:
    def books(**counts: int) -> Any:
        moves = MoveCounts(brought=counts.get("swapped", 0), bytes_in=10)
        return SimpleNamespace(preempted=PreemptionCounts(**counts), moves=moves)

    tally = CentralTally(lambda: 7.0)
    tally.note_group("a", books(swapped=3, held=1))
    tally.note_group("b", books(recomputed=2))
    tally.note_group("a", books(swapped=4, held=1))
    tally.note_group("a", books(swapped=1))  # formed anew
    tally.note_gone("b")
    tally.note_gone("c")
    assert tally.books(5).preempted == PreemptionCounts(swapped=5, held=1, recomputed=2)
    assert tally.books(5).moves == MoveCounts(brought=5, bytes_in=30)
    assert tally.books(5).relieved == 5
