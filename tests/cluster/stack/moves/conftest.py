"""Groups between which requests move with their blocks, at costs that tests set."""

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from blockyard.cluster.moves import block_moves
from blockyard.cluster.moves.block_door import BlockDoor
from blockyard.cluster.moves.offered import Offered
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.request import RequestSpec
from blockyard.workers.host_memory import HostMemory

BLOCK_BYTES = 32
"""Of the witness: four slots of eight bytes."""
PROMPT = tuple(range(7, 68))
"""61 tokens, which are 16 blocks."""
SLOW, FAST = 10.0, 1e9
"""Prefilled tokens a second: blocks are cheaper, and they are not."""

Spec = Callable[..., RequestSpec]


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
        group.server.engine.scheduler.batch.parking.rates = RateMeter(BLOCK_BYTES, prefill, 0.0)
        return group

    return add


@pytest.fixture
def ask(stack: Any, spec: Spec, begin: Any) -> Callable[..., Awaitable[Any]]:
    async def ask(name: str = "mover", prompt: tuple[int, ...] = PROMPT, limit: int = 120) -> Any:
        client = await begin(spec(name, prompt, limit))
        await stack.until(lambda: len(client.tokens) > 5)
        return client

    return ask


@pytest.fixture
def moves() -> Callable[[Any], Any]:
    return lambda group: group.server.ledger().moves


async def _settle(stack: Any) -> None:
    """Every block is back, on both sides of every group's link."""

    def clean() -> bool:
        pools = [group.server.ledger().host_blocks for group in stack.groups]
        return stack.idle() and all(pool.free == pool.total for pool in pools)

    await stack.until(clean)


@pytest.fixture
def settle() -> Callable[[Any], Awaitable[None]]:
    return _settle


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
