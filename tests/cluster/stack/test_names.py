"""What clients call their requests: one live request of a tenant has a name, in all the cluster."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from blockyard.cluster.ingress import ClusterDispatcher
from blockyard.scheduler.request import RefusalCode, RequestRefused, RequestSpec

Spec = Callable[..., RequestSpec]


@pytest.fixture
async def other(stack: Any) -> AsyncIterator[ClusterDispatcher]:
    """Another ingress of the same deployment."""
    made = ClusterDispatcher(stack.dispatcher.models(), stack.locate)
    runner = asyncio.create_task(made.run())
    yield made
    runner.cancel()
    await asyncio.gather(runner, return_exceptions=True)
    await made.close()


@pytest.fixture
def named(spec: Spec) -> Callable[..., RequestSpec]:
    """A request called "mine"; engines know it by another id each time."""
    made = iter(range(100))

    def make(tenant: str = "", max_tokens: int = 200) -> RequestSpec:
        one = spec(f"own-{next(made)}", (1, 2, 3), max_tokens)
        return replace(one, name="mine", tenant=tenant)

    return make


async def refused(ingress: ClusterDispatcher, spec: RequestSpec) -> None:
    with pytest.raises(RequestRefused) as caught:
        await ingress.submit("witness", spec)
    assert (caught.value.code, caught.value.field) == (RefusalCode.EXISTS, "request_id")


async def test_a_name_is_one_live_requests_in_the_whole_cluster(
    stack: Any, other: ClusterDispatcher, named: Spec
) -> None:
    for _ in range(2):
        await stack.add_group()
    await stack.until(lambda: len(other.group_ids) == 2)
    stream = await stack.dispatcher.submit("witness", named())
    for ingress in (stack.dispatcher, other):
        await refused(ingress, named())
    apart = await other.submit("witness", named("another tenant"))
    assert [update async for update in stream] and [update async for update in apart]
    # It has ended: the name is free again, for whoever asks first.
    await stack.until(lambda: not stack.central.names)
    again = await other.submit("witness", named(max_tokens=5))
    await refused(stack.dispatcher, named())
    assert [update async for update in again]
    await stack.until(stack.idle)


async def test_whoever_leaves_lets_its_name_go(
    stack: Any, other: ClusterDispatcher, named: Spec
) -> None:
    await stack.add_group()
    await stack.until(lambda: len(other.group_ids) == 1)
    stream = await stack.dispatcher.submit("witness", named())
    await stream.abort()
    await stream.abort()
    await stack.until(lambda: not stack.central.names)
    await (await other.submit("witness", named())).abort()
    never = replace(named(), prompt_token_ids=())
    for _ in range(2):  # what is refused holds no name
        with pytest.raises(RequestRefused) as caught:
            await stack.dispatcher.submit("witness", never)
        assert caught.value.field == "prompt"
    await stack.until(stack.idle)


async def test_names_of_an_ingress_that_dies_are_free(
    stack: Any, other: ClusterDispatcher, named: Spec
) -> None:
    await stack.add_group()
    await stack.until(lambda: len(other.group_ids) == 1)
    dying = ClusterDispatcher(stack.dispatcher.models(), stack.locate)
    runner = asyncio.create_task(dying.run())
    await stack.until(lambda: len(dying.group_ids) == 1)
    await dying.submit("witness", named())
    await refused(other, named())
    runner.cancel()
    await asyncio.gather(runner, return_exceptions=True)
    await dying.close()
    await stack.until(lambda: not stack.central.names)
    await (await other.submit("witness", named())).abort()
    await stack.until(stack.idle)


async def test_a_new_central_scheduler_is_told_of_names_that_are_held(
    stack: Any, other: ClusterDispatcher, named: Spec
) -> None:
    group = await stack.add_group()
    await stack.until(lambda: len(other.group_ids) == 1)
    group.workers[0].gate.clear()
    stream = await stack.dispatcher.submit("witness", named())
    await stack.stop_central()
    await refused(stack.dispatcher, named())  # it knows its own
    await stack.start_central()
    await stack.until(lambda: stack.dispatcher.linked and other.linked)
    await stack.until(lambda: stack.central.names == {"/mine"})
    await refused(other, named())
    group.workers[0].gate.set()
    await stream.abort()
    await stack.until(stack.idle)
