"""Requests found by the names that clients know, from any ingress, each tenant's own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from blockyard.cluster.ingress import ClusterDispatcher
from blockyard.scheduler.explain import WaitReason
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestState

Spec = Callable[..., RequestSpec]
PROMPT = tuple(range(1, 30))


@pytest.fixture
async def other(stack: Any) -> AsyncIterator[ClusterDispatcher]:
    """Another ingress of the same deployment."""
    made = ClusterDispatcher(stack.dispatcher.models(), stack.locate)
    runner = asyncio.create_task(made.run())
    yield made
    runner.cancel()
    await asyncio.gather(runner, return_exceptions=True)
    await made.close()


async def test_another_ingress_calls_a_request_off(
    stack: Any, other: ClusterDispatcher, spec: Spec
) -> None:
    await stack.add_group()
    await stack.until(lambda: len(other.group_ids) == 1)
    one = replace(spec("own-1", (1, 2, 3), 200), name="mine", tenant="corp/me", num_choices=3)
    stream = await stack.dispatcher.submit("witness", one)
    news = aiter(stream)
    first = await anext(news)
    assert await other.requests("rival", "mine", call_off=True) == ()
    assert await other.requests("corp", "other", call_off=True) == ()
    (found,) = await other.requests("corp", "mine", call_off=True)
    assert found.name == "mine"
    updates = [first, *[update async for update in news]]
    ends = [u.choice for u in updates if u.finish_reason is FinishReason.ABORT]
    assert sorted(ends) == [0, 1, 2]
    assert all(u.finish_reason in (None, FinishReason.ABORT) for u in updates)
    await stack.until(stack.idle)
    assert await other.requests("corp", "mine", call_off=True) == ()
    # Its name is free again.
    await stack.until(lambda: not stack.central.names)


async def test_a_server_s_own_name_finds_it_too(stack: Any, spec: Spec) -> None:
    await stack.add_group()
    stream = await stack.dispatcher.submit("witness", spec("own-1", (1, 2, 3), 200))
    await anext(aiter(stream))
    (found,) = await stack.dispatcher.requests("", "own-1", call_off=True)
    assert found.name == "own-1"
    assert [choice.choice for choice in found.explanations] == [0]
    await stack.until(stack.idle)
    await stream.abort()


async def test_why_a_request_waits_without_other_tenants_names(stack: Any, spec: Spec) -> None:
    group = await stack.add_group(num_blocks=12)
    running = [
        await stack.dispatcher.submit(
            "witness", replace(spec(f"own-{tenant}", PROMPT[n:], 10), tenant=tenant, name=tenant)
        )
        for n, tenant in enumerate(("rival", "corp"))
    ]
    group.workers[0].gate.clear()
    waiting = replace(spec("own-3", PROMPT, 10), tenant="corp", name="waits")
    stream = await stack.dispatcher.submit("witness", waiting)
    (found,) = await stack.dispatcher.requests("corp", "waits")
    (told,) = found.explanations
    assert (told.request_id, told.state) == ("waits", RequestState.WAITING)
    assert told.reason is not WaitReason.NOTHING
    named = {holder.request_id for holder in told.holders} | {told.behind}
    assert named <= {"", "corp"}
    assert await stack.dispatcher.requests("rival", "waits") == ()
    # Nobody has a tenant where there are no keys: then all is everybody's.
    assert len(await stack.dispatcher.requests("", "waits")) == 1
    group.workers[0].gate.set()
    for each in (*running, stream):
        assert [update async for update in each]
    await stack.until(stack.idle)


async def test_nothing_is_kept_of_those_that_have_ended(stack: Any, spec: Spec) -> None:
    group = await stack.add_group()
    for n in range(3):
        stream = await stack.dispatcher.submit("witness", spec(f"own-{n}", (1, 2, 3), 5))
        assert [update async for update in stream]
    left = await stack.dispatcher.submit("witness", spec("own-9", (1, 2, 3), 200))
    await left.abort()
    await stack.until(stack.idle)
    assert group.server._desk._specs == {}
