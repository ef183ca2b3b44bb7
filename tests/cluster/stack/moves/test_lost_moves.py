"""Whoever dies, leaves or is slow while blocks are on their way: no token changes."""

import asyncio
import threading
from typing import Any

import pytest

from blockyard.cluster.moves import block_moves

pytestmark = pytest.mark.timeout(120)

BLOCK_BYTES = 32
PROMPT = tuple(range(7, 68))
FAST = 1e9
"""Prefilled tokens a second: computing is cheaper than anything."""


async def test_streams_of_the_taker_go_on_while_blocks_come(
    stack: Any, add: Any, ask: Any, halting: Any, moves: Any, settle: Any
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
    stack: Any, add: Any, ask: Any, halting: Any, moves: Any
) -> None:
    giver = await add()
    client = await ask()
    taker = await add()
    giver.server.hand_over()
    await stack.until(halting.is_reached)
    for host in giver.hosts:
        threading.Thread(target=host.close).start()
    await stack.until(lambda: giver.server.lost is not None)
    halting.go()
    await client.check()
    told = moves(taker)
    assert (told.brought, told.cut_short, told.blocks_in, told.tokens_in) == (1, 1, 2, 8)
    assert taker.server.ledger().recomputed_tokens >= len(PROMPT) - 8
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
    stack: Any, add: Any, ask: Any, halting: Any, moves: Any, settle: Any
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
    stack: Any, add: Any, ask: Any, monkeypatch: pytest.MonkeyPatch, settle: Any
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
