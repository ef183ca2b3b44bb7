"""Groups that are lost or leave while others go on, over real wires."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from blockyard.scheduler.request import RefusalCode, RequestRefused, RequestSpec
from blockyard.workers.fake import witness_generate

pytestmark = pytest.mark.timeout(60)

VOCAB = 251

Spec = Callable[..., RequestSpec]
Collected = Callable[..., Awaitable[Any]]


@pytest.fixture
def answered(
    stack: Any, spec: Spec, collected: Collected
) -> Callable[[str], Coroutine[Any, Any, None]]:
    """Ask for ten tokens and prove them right."""

    async def ask(name: str) -> None:
        one = spec(name, (3, len(name)), 10)
        tokens, _ = await collected(await stack.dispatcher.submit("witness", one))
        assert tokens == witness_generate(one.prompt_token_ids, 10, VOCAB)

    return ask


async def test_a_group_whose_rank_dies_while_idle_is_sent_nothing_more(
    stack: Any, answered: Callable[[str], Coroutine[Any, Any, None]]
) -> None:
    lost = await stack.add_group(ranks=2)
    await stack.add_group()
    await answered("before")
    lost.hosts[1].close()
    await stack.until(lambda: lost.server.lost is not None)
    assert "rank 1" in lost.server.lost
    await stack.until(lambda: stack.central.group_ids == ("group-1",))
    await stack.until(lambda: stack.dispatcher.group_ids == ("group-1",))
    await asyncio.gather(*(answered(f"after{number}") for number in range(10)))


async def test_no_traffic_is_welcome_once_the_only_group_is_lost(stack: Any, spec: Spec) -> None:
    group = await stack.add_group()
    assert await stack.dispatcher.ready()
    group.hosts[0].close()
    await stack.until(lambda: stack.dispatcher.group_ids == ())
    assert not await stack.dispatcher.ready()
    with pytest.raises(RequestRefused) as refused:
        await stack.dispatcher.submit("witness", spec("late", (1,), 5))
    assert refused.value.code is RefusalCode.UNAVAILABLE
    assert await stack.central.drain(20)  # nobody waits for the lost


async def test_clients_do_not_notice_a_group_that_drains_by_itself(
    stack: Any, answered: Callable[[str], Coroutine[Any, Any, None]]
) -> None:
    leaving = await stack.add_group()
    await stack.add_group()
    load = [asyncio.create_task(answered(f"r{number}")) for number in range(40)]
    await asyncio.sleep(0)
    leaving.server.start_drain()
    load += [asyncio.create_task(answered(f"s{number}")) for number in range(40)]
    await asyncio.gather(*load)
    await asyncio.wait_for(leaving.server.engine.wait_idle(), 20)


async def test_a_lost_group_ends_its_requests_and_frees_their_blocks(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    group = await stack.add_group()
    group.workers[0].gate.clear()
    stream = await stack.dispatcher.submit("witness", spec("a", (1,) * 9, 99))
    await asyncio.to_thread(group.workers[0].entered.wait, 10)
    group.workers[0].fault = RuntimeError("the device fell off the bus")
    group.workers[0].gate.set()
    with pytest.raises(RequestRefused) as lost:
        await collected(stream)
    assert lost.value.message == "the workers that ran this request were lost; send it again"
    await stack.until(lambda: group.server.engine.num_requests == 0)
    ledger = group.server.ledger()
    ledger.check()
    # Nobody will ever say that the step in flight has ended.
    assert (ledger.blocks.active, ledger.blocks.fenced) == (0, 3)
