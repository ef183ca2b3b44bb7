"""Requests that no group has: found and ended by their clients, from any ingress, and in time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from blockyard.cluster.ingress import ClusterDispatcher
from blockyard.cluster.ingress_desk import IngressDesk
from blockyard.cluster.served_request import AskUnplaced, ServedRequest, UnplacedAnswer
from blockyard.scheduler.explain import WaitReason
from blockyard.scheduler.request import (
    FinishReason,
    RefusalCode,
    RequestRefused,
    RequestSpec,
    RequestState,
)

pytestmark = pytest.mark.timeout(60)

Spec = Callable[..., RequestSpec]


@pytest.fixture
async def other(stack: Any) -> AsyncIterator[ClusterDispatcher]:
    """Another ingress of the same deployment."""
    made = ClusterDispatcher(stack.dispatcher.models(), stack.locate)
    runner = asyncio.create_task(made.run())
    await stack.until(lambda: made.linked and stack.dispatcher.linked)
    yield made
    runner.cancel()
    await asyncio.gather(runner, return_exceptions=True)
    await made.close()


@pytest.fixture
def on_demand(stack: Any) -> None:
    stack.dispatcher._resume_seconds = 60.0
    stack.dispatcher._on_demand = frozenset({"witness"})


def mine(spec: Spec, name: str = "mine", **more: Any) -> RequestSpec:
    return replace(spec(f"own-{name}", (1, 2, 3), 200), name=name, tenant="corp/me", **more)


async def waiting(stack: Any, asked: RequestSpec) -> "asyncio.Task[Any]":
    before = len(stack.dispatcher._between)
    task = asyncio.create_task(stack.dispatcher.submit("witness", asked))
    await stack.until(lambda: len(stack.dispatcher._between) == before + 1)
    return task


async def ends(stream: Any) -> list[tuple[int, FinishReason]]:
    return [
        (update.choice, update.finish_reason)
        async for update in stream
        if update.finish_reason is not None
    ]


@pytest.mark.usefixtures("on_demand")
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_one_that_waits_for_a_group_is_explained_and_called_off(
    stack: Any, other: ClusterDispatcher, spec: Spec, elsewhere: bool
) -> None:
    asking = other if elsewhere else stack.dispatcher
    first = await waiting(stack, mine(spec, "first"))
    submission = await waiting(stack, mine(spec, num_choices=2))
    assert await asking.requests("rival", "mine", call_off=True) == ()
    (found,) = await asking.requests("corp", "mine")
    assert [(e.choice, e.state, e.reason, e.place) for e in found.explanations] == [
        (choice, RequestState.WAITING, WaitReason.GROUP, 1) for choice in (0, 1)
    ]
    (found,) = await asking.requests("corp", "mine", call_off=True)
    assert found.name == "mine"
    stream = await submission
    assert await ends(stream) == [(0, FinishReason.ABORT), (1, FinishReason.ABORT)]
    assert await asking.requests("corp", "mine", call_off=True) == ()
    assert not first.done()
    # Its name is free again, and nothing of it comes to the group that it waited for.
    again = await waiting(stack, mine(spec))
    group = await stack.add_group()
    streams = [await first, await again]
    assert {request.name for request in await asking.requests("corp", "mine")} == {"mine"}
    for stream in streams:
        await stream.abort()
    await stack.until(stack.idle)
    assert group.server.ledger().prompt_tokens <= 6
    await stack.until(lambda: not stack.central.names)


@pytest.mark.usefixtures("on_demand")
async def test_one_whose_group_was_lost_is_called_off_on_its_way(
    stack: Any, other: ClusterDispatcher, spec: Spec
) -> None:
    dying = await stack.add_group()
    stream = await stack.dispatcher.submit("witness", mine(spec, num_choices=3))
    news = aiter(stream)
    await anext(news)
    await stream.abort(1)
    dying.workers[0].fault = RuntimeError("the device fell off the bus")
    reading = asyncio.create_task(ends(news))
    await stack.until(lambda: len(stack.dispatcher._between) == 1)
    (found,) = await other.requests("corp", "mine")
    assert [(e.choice, e.state, e.reason) for e in found.explanations] == [
        (choice, RequestState.PARKED, WaitReason.GROUP) for choice in (0, 2)
    ]
    assert len(await other.requests("corp", "mine", call_off=True)) == 1
    assert await reading == [(0, FinishReason.ABORT), (2, FinishReason.ABORT)]
    await stack.until(lambda: not stack.central.names)
    assert len(stack.dispatcher._between) == 0


@pytest.mark.usefixtures("on_demand")
async def test_a_client_that_leaves_while_it_waits_leaves_nothing(stack: Any, spec: Spec) -> None:
    await stack.until(lambda: stack.dispatcher.linked)
    submission = await waiting(stack, mine(spec))
    submission.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submission
    assert len(stack.dispatcher._between) == 0
    await stack.until(lambda: stack.central.load("witness", 16).unbound_requests == 0)


@pytest.mark.usefixtures("on_demand")
async def test_parts_of_one_call_are_found_by_its_name_with_their_own_numbers(
    stack: Any, spec: Spec
) -> None:
    await stack.until(lambda: stack.dispatcher.linked)
    parts = [
        await waiting(
            stack,
            replace(
                spec(f"own-{n}", (n, 2), 200),
                name="mine" if n == 0 else "",
                part_of="mine",
                first_number=2 * n,
                num_choices=2,
            ),
        )
        for n in range(2)
    ]
    await stack.add_group()
    streams = [await part for part in parts]
    found = await stack.dispatcher.requests("", "mine")
    explained = [each for served in found for each in served.explanations]
    numbers = [number for each in explained for number in (each.choice, *each.begins)]
    assert sorted(numbers) == [0, 1, 2, 3]
    assert len(await stack.dispatcher.requests("", "mine", call_off=True)) == 2
    for stream in streams:
        assert {reason for _, reason in await ends(stream)} == {FinishReason.ABORT}


@pytest.mark.usefixtures("on_demand")
async def test_a_deadline_goes_on_while_a_request_waits_for_a_group(stack: Any, spec: Spec) -> None:
    await stack.until(lambda: stack.dispatcher.linked)
    hopeless = replace(spec("a", (1, 2, 3), 9), deadline_seconds=0.2)
    with pytest.raises(RequestRefused, match="deadline passed") as refused:
        await stack.dispatcher.submit("witness", hopeless)
    assert (refused.value.code, refused.value.field) == (RefusalCode.INVALID, "deadline_seconds")
    patient = await waiting(stack, replace(spec("b", (1, 2, 3), 200), deadline_seconds=50.0))
    group = await stack.add_group()
    stream = await patient
    (member,) = group.server.engine.scheduler.roster.members("b")
    assert 0 < member.spec.deadline_seconds < 50.0
    await stream.abort()


async def test_a_group_that_drains_makes_nobody_welcome(
    stack: Any, other: ClusterDispatcher
) -> None:
    going = await stack.add_group()
    await stack.until(lambda: len(other.group_ids) == 1)
    assert await stack.dispatcher.ready() and await other.ready()
    going.server.start_drain()

    async def until_ready(ready: bool) -> None:
        async with asyncio.timeout(20):
            while {await stack.dispatcher.ready(), await other.ready()} != {ready}:
                await asyncio.sleep(0.002)

    await until_ready(False)
    await stack.add_group()
    await until_ready(True)


class Ingress:
    """What the desk posts to."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def post(self, message: object) -> None:
        self.told.append(message)


def test_a_search_ends_when_all_have_answered_or_gone() -> None:
    desk = IngressDesk()
    asker, quick, slow, late = (Ingress() for _ in range(4))
    for ingress in (asker, quick, slow):
        desk.join(ingress, ())
    desk.search(asker, AskUnplaced(7, "corp", "mine", call_off=True))
    desk.join(late, ())
    (passed_on,) = quick.told
    assert (passed_on.tenant, passed_on.name, passed_on.call_off) == ("corp", "mine", True)
    found = ServedRequest("mine", ())
    for _ in range(2):  # the second time it says nothing new
        desk.answered(quick, UnplacedAnswer(passed_on.ticket, (found,)))
    assert asker.told == [] and late.told == []
    desk.leave(slow)
    assert asker.told == [UnplacedAnswer(7, (found,))]
    desk.search(asker, AskUnplaced(8, "corp", "mine"))
    desk.leave(asker)
    desk.answered(quick, UnplacedAnswer(quick.told[-1].ticket, (found,)))
    assert len(asker.told) == 1
