"""A request leaves for another group: its blocks go over the wire where that is cheaper."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from blockyard.cluster.moves import block_moves
from blockyard.cluster.moves.block_door import BlockDoor
from blockyard.cluster.moves.offered import Offered
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.request import FinishReason, RequestSpec
from blockyard.scheduler.scarcity import set_host_blocks_aside
from blockyard.workers.fake import witness_generate
from blockyard.workers.host_memory import HostMemory

pytestmark = pytest.mark.timeout(120)

VOCAB = 251
BLOCK_BYTES = 32
"""Of the witness: four slots of eight bytes."""
PROMPT = tuple(range(7, 68))
"""61 tokens, which are 16 blocks."""
SLOW, FAST = 10.0, 1e9
"""Prefilled tokens a second: blocks are cheaper, and they are not."""

Spec = Callable[..., RequestSpec]


class Client:
    """Reads one stream to its end."""

    def __init__(self, spec: RequestSpec, stream: Any) -> None:
        self.spec = spec
        self.stream = stream
        self.tokens: list[int] = []
        self.reading = asyncio.create_task(self._read(stream))

    async def _read(self, stream: Any) -> None:
        async for update in stream:
            self.tokens.extend(update.token_ids)
            assert update.finish_reason in (None, FinishReason.LENGTH)

    async def check(self) -> None:
        await self.reading
        limit = self.spec.sampling.max_tokens or 0
        assert self.tokens == witness_generate(self.spec.prompt_token_ids, limit, VOCAB)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are as the tests say, and nobody is given up because the machine is busy."""
    monkeypatch.setattr(RateMeter, "observe_step", lambda *told: None)
    monkeypatch.setattr(RateMeter, "observe_copy", lambda *told: None)
    monkeypatch.setattr(block_moves, "LEAST_SECONDS", 60.0)
    monkeypatch.setattr(block_moves, "LONGEST_SECONDS", 60.0)
    monkeypatch.setattr(block_moves, "MOST_SECONDS", 60.0)


@pytest.fixture
def add(stack: Any) -> Callable[..., Awaitable[Any]]:
    async def add(prefill: float = SLOW, **told: Any) -> Any:
        group = await stack.add_group(**{"num_blocks": 128, "num_host_blocks": 64, **told})
        group.server.engine.scheduler._batch.parking.rates = RateMeter(BLOCK_BYTES, prefill, 0.0)
        return group

    return add


@pytest.fixture
def ask(stack: Any, spec: Spec) -> Callable[..., Awaitable[Client]]:
    async def ask(
        name: str = "mover", prompt: tuple[int, ...] = PROMPT, limit: int = 120
    ) -> Client:
        asked = spec(name, prompt, limit)
        client = Client(asked, await stack.dispatcher.submit("witness", asked))
        await stack.until(lambda: len(client.tokens) > 5)
        return client

    return ask


def moves(group: Any) -> Any:
    return group.server.ledger().moves


async def settle(stack: Any) -> None:
    """Every block is back, on both sides of every group's link."""

    def clean() -> bool:
        pools = [group.server.ledger().host_blocks for group in stack.groups]
        return stack.idle() and all(pool.free == pool.total for pool in pools)

    await stack.until(clean)


async def test_what_still_runs_after_a_drain_goes_on_with_its_blocks(
    stack: Any, add: Any, ask: Any
) -> None:
    giver = await add()
    clients = [await ask(), await ask("other", PROMPT[::-1])]
    taker = await add()
    giver.server.start_drain()
    assert giver.server.hand_over() == 2
    assert await giver.server.moves.settled(60.0)
    await asyncio.gather(*(client.check() for client in clients))
    came, went = moves(taker), moves(giver)
    assert (came.brought, came.recomputed, came.cut_short) == (2, 0, 0)
    assert came.tokens_in > 2 * len(PROMPT)
    assert came.blocks_in == went.blocks_out >= came.tokens_in // 4
    assert came.bytes_in == went.bytes_out == came.blocks_in * BLOCK_BYTES
    # Only what the steps under way had computed, and nobody was told of.
    assert taker.server.ledger().recomputed_tokens == 0
    await settle(stack)


async def test_every_rank_gets_its_own_blocks(stack: Any, add: Any, ask: Any) -> None:
    giver = await add(ranks=2)
    client = await ask()
    taker = await add(ranks=2)
    giver.server.hand_over()
    await client.check()
    assert (moves(taker).brought, taker.server.ledger().recomputed_tokens) == (1, 0)
    assert moves(taker).bytes_in == 2 * moves(taker).blocks_in * BLOCK_BYTES
    await settle(stack)


async def test_what_is_computed_sooner_is_computed_again(stack: Any, add: Any, ask: Any) -> None:
    giver = await add(FAST)
    client = await ask()
    taker = await add()
    giver.server.moves._out.observe(1, 1.0, giver.server.moves._clock())
    giver.server.hand_over()
    await client.check()
    assert (moves(taker).brought, moves(taker).recomputed) == (0, 1)
    assert moves(giver).bytes_out == giver.server.ledger().preempted.blocks_out == 0
    assert taker.server.ledger().recomputed_tokens >= len(PROMPT)
    await settle(stack)


async def test_the_taker_knows_what_it_costs_there(stack: Any, add: Any, ask: Any) -> None:
    giver = await add()
    client = await ask()
    taker = await add(FAST)
    link = block_moves.LinkMeter()
    link.observe(1, 1.0, taker.server.moves._clock())
    taker.server.moves._links["127.0.0.1"] = link
    giver.server.hand_over()
    assert giver.server.ledger().host_blocks.active > 0
    await client.check()
    assert (moves(taker).brought, moves(taker).recomputed) == (0, 1)
    assert moves(giver).bytes_out == 0
    await settle(stack)  # the giver is told that nobody wants them


async def test_blocks_under_other_weights_are_not_taken(stack: Any, add: Any, ask: Any) -> None:
    giver = await add(version="one")
    client = await ask()
    taker = await add(version="two")
    giver.server.hand_over()
    await client.check()
    assert (moves(taker).brought, moves(taker).recomputed) == (0, 1)
    await settle(stack)


async def test_blocks_that_are_laid_out_otherwise_are_not_taken(
    stack: Any, add: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver = await add()
    client = await ask()
    taker = await add()
    inner = taker.workers[0].host_memory

    def other() -> HostMemory:
        return HostMemory("other", BLOCK_BYTES, inner().content)

    monkeypatch.setattr(taker.workers[0], "host_memory", other)
    giver.server.hand_over()
    await client.check()
    told = moves(taker)
    assert (told.brought, told.recomputed, told.cut_short, told.bytes_in) == (0, 1, 1, 0)
    await settle(stack)


@pytest.mark.parametrize("full", ["giver", "taker"])
async def test_without_room_in_host_memory_they_are_computed_again(
    stack: Any, add: Any, ask: Any, full: str
) -> None:
    groups = {"giver": await add()}
    client = await ask()
    groups["taker"] = await add()
    set_host_blocks_aside(groups[full].server.engine.scheduler, True)
    groups["giver"].server.hand_over()
    await client.check()
    assert (moves(groups["taker"]).brought, moves(groups["taker"]).recomputed) == (0, 1)
    set_host_blocks_aside(groups[full].server.engine.scheduler, False)
    await settle(stack)


@pytest.fixture
def halting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A block at a time; from the third on the giver's door waits for a word."""
    monkeypatch.setattr(block_moves, "FIRST_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(block_moves, "LARGEST_BYTES", BLOCK_BYTES)
    sends = BlockDoor._send
    gate, reached = threading.Event(), threading.Event()

    def send(
        door: BlockDoor, peer: Any, offered: Offered, memory: HostMemory, first: int, count: int
    ) -> None:
        if count and first >= 2:
            reached.set()
            assert gate.wait(60)
        sends(door, peer, offered, memory, first, count)

    monkeypatch.setattr(BlockDoor, "_send", send)

    class Halting:
        go, is_reached = gate.set, reached.is_set

    yield Halting
    gate.set()


async def test_streams_of_the_taker_go_on_while_blocks_come(
    stack: Any, add: Any, ask: Any, halting: Any
) -> None:
    giver = await add()
    client = await ask()
    taker = await add()
    giver.server.hand_over()
    await stack.until(halting.is_reached)
    await stack.until(lambda: taker.server.engine.serves("mover"))
    told = len(client.tokens)
    other = await ask("other", PROMPT[:20], 60)
    await other.check()
    assert len(client.tokens) == told
    taker.server.check()
    (waits,) = taker.server.engine.explain("mover")
    assert waits.reason.value == "transit"
    halting.go()
    await client.check()
    assert moves(taker).brought == 1
    await settle(stack)


async def test_when_the_giver_dies_midway_what_has_come_counts(
    stack: Any, add: Any, ask: Any, halting: Any
) -> None:
    giver = await add()
    client = await ask()
    taker = await add()
    giver.server.hand_over()
    await stack.until(halting.is_reached)
    for host in giver.hosts:
        threading.Thread(target=host.close).start()
    halting.go()
    await client.check()
    told = moves(taker)
    assert (told.brought, told.cut_short, told.blocks_in, told.tokens_in) == (1, 1, 2, 8)
    assert taker.server.ledger().recomputed_tokens >= len(PROMPT) - 8
    await stack.until(lambda: giver.server.lost is not None)
    taker.server.check()
    assert taker.server.ledger().host_blocks.free == 64


async def test_when_the_taker_dies_midway_the_giver_has_its_blocks_back(
    stack: Any, add: Any, ask: Any, halting: Any
) -> None:
    giver = await add()
    client = await ask()
    taker = await add()
    giver.server.start_drain()
    giver.server.hand_over()
    await stack.until(halting.is_reached)
    third = await stack.add_group(num_host_blocks=64)
    for host in taker.hosts:
        threading.Thread(target=host.close).start()
    halting.go()
    await client.check()
    assert third.server.ledger().moves.recomputed == 1
    await stack.until(lambda: giver.server.ledger().host_blocks.free == 64)
    giver.server.check()


async def test_a_client_that_leaves_while_its_blocks_come_leaves_nothing(
    stack: Any, add: Any, ask: Any, halting: Any
) -> None:
    giver = await add()
    client = await ask()
    taker = await add()
    giver.server.hand_over()
    await stack.until(halting.is_reached)
    await stack.until(lambda: taker.server.engine.serves("mover"))
    await client.stream.abort()
    await stack.until(lambda: not taker.server.engine.serves("mover"))
    taker.server.check()
    assert taker.server.ledger().host_blocks.active > 0, "a rank may still write to them"
    halting.go()
    await settle(stack)
    assert moves(taker).brought == 0
    client.reading.cancel()


async def test_what_nobody_fetches_is_given_up(
    stack: Any, add: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver = await add()
    client = await ask()
    monkeypatch.setattr(block_moves, "MOST_SECONDS", 0.2)
    assert giver.server.moves.send_off("mover") is not None
    giver.server.check()
    assert giver.server.ledger().host_blocks.active > 0
    await stack.until(lambda: giver.server.ledger().host_blocks.free == 64)
    await client.check()
    await settle(stack)


async def test_a_door_that_closes_by_itself_ends_the_group(stack: Any, add: Any) -> None:
    group = await add()
    door = group.hosts[0]._door
    await asyncio.to_thread(door.close)
    await stack.until(lambda: group.server.lost is not None)
    assert "door of rank 0" in (group.server.lost or "")
