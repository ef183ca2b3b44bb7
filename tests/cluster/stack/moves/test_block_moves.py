"""A request leaves for another group: its blocks go over the wire where that is cheaper."""

import asyncio
from typing import Any

import pytest

from blockyard.scheduler.move_cost import LinkMeter
from blockyard.scheduler.scarcity import set_host_blocks_aside
from blockyard.workers.host_memory import HostMemory

pytestmark = pytest.mark.timeout(120)

BLOCK_BYTES = 32
PROMPT = tuple(range(7, 68))
FAST = 1e9
"""Prefilled tokens a second: computing is cheaper than anything."""


async def test_what_still_runs_after_a_drain_goes_on_with_its_blocks(
    stack: Any, add: Any, ask: Any, moves: Any, settle: Any
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


async def test_every_rank_gets_its_own_blocks(
    stack: Any, add: Any, ask: Any, moves: Any, settle: Any
) -> None:
    giver = await add(ranks=2)
    client = await ask()
    taker = await add(ranks=2)
    giver.server.hand_over()
    await client.check()
    assert (moves(taker).brought, taker.server.ledger().recomputed_tokens) == (1, 0)
    assert moves(taker).bytes_in == 2 * moves(taker).blocks_in * BLOCK_BYTES
    await settle(stack)


async def test_what_is_computed_sooner_is_computed_again(
    stack: Any, add: Any, ask: Any, moves: Any, settle: Any
) -> None:
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


async def test_the_taker_knows_what_it_costs_there(
    stack: Any, add: Any, ask: Any, moves: Any, settle: Any
) -> None:
    giver = await add()
    client = await ask()
    taker = await add(FAST)
    link = LinkMeter()
    link.observe(1, 1.0, taker.server.moves._clock())
    taker.server.moves._links["127.0.0.1"] = link
    giver.server.hand_over()
    assert giver.server.ledger().host_blocks.active > 0
    await client.check()
    assert (moves(taker).brought, moves(taker).recomputed) == (0, 1)
    assert moves(giver).bytes_out == 0
    await settle(stack)  # the giver is told that nobody wants them


async def test_blocks_under_other_weights_are_not_taken(
    stack: Any, add: Any, ask: Any, moves: Any, settle: Any
) -> None:
    giver = await add(version="one")
    client = await ask()
    taker = await add(version="two")
    giver.server.hand_over()
    await client.check()
    assert (moves(taker).brought, moves(taker).recomputed) == (0, 1)
    await settle(stack)


async def test_blocks_that_are_laid_out_otherwise_are_not_taken(
    stack: Any, add: Any, ask: Any, monkeypatch: pytest.MonkeyPatch, moves: Any, settle: Any
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
    stack: Any, add: Any, ask: Any, full: str, moves: Any, settle: Any
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
