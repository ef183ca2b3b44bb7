"""Requests go to the group that has their prefix, and a busy one does not draw everybody."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from blockyard.scheduler.request import RequestSpec

Spec = Callable[..., RequestSpec]
Collected = Callable[..., Awaitable[Any]]

PREFIX = tuple(range(1, 81))


def free_blocks(stack: Any) -> int:
    """In all groups together, as far as the central scheduler knows."""
    return sum(member.candidate.free_blocks for member in stack.central._members.values())


async def test_a_known_prefix_is_found_wherever_it_is(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    groups = [await stack.add_group() for _ in range(3)]
    await collected(await stack.dispatcher.submit("witness", spec("first", PREFIX, 4)))
    (knows,) = (group for group in groups if group.server.ledger().step)
    await stack.until(lambda: stack.central.num_known_blocks() >= len(PREFIX) // 4)
    for number in range(6):
        # What the last one held is free again, and central has heard of it.
        await stack.until(lambda: free_blocks(stack) == 3 * 64)
        asked = spec(f"r{number}", (*PREFIX, 200 + number), 3)
        _, updates = await collected(await stack.dispatcher.submit("witness", asked))
        assert updates[-1].cached_tokens == len(PREFIX)
    assert [group.server.ledger().step > 0 for group in groups].count(True) == 1
    knows.server.engine.check()


async def test_load_outweighs_a_prefix(stack: Any, spec: Spec, collected: Collected) -> None:
    groups = [await stack.add_group() for _ in range(2)]
    await collected(await stack.dispatcher.submit("witness", spec("first", PREFIX, 4)))
    (knows,) = (group for group in groups if group.server.ledger().step)
    await stack.until(lambda: stack.central.num_known_blocks() >= len(PREFIX) // 4)
    for group in groups:
        group.workers[0].gate.clear()
    # Each takes a few blocks of its own; with enough of them the other group is the better one.
    streams = [
        await stack.dispatcher.submit("witness", spec(f"r{n}", (*PREFIX, *range(n, n + 40)), 5))
        for n in range(8)
    ]
    (other,) = (group for group in groups if group is not knows)
    assert knows.server.engine.num_requests and other.server.engine.num_requests
    for group in groups:
        group.workers[0].gate.set()
    await asyncio.gather(*(collected(stream) for stream in streams))
    await stack.until(stack.idle)


async def test_a_new_central_scheduler_learns_what_is_known(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    for _ in range(2):
        await stack.add_group()
    await collected(await stack.dispatcher.submit("witness", spec("first", PREFIX, 4)))
    await stack.until(lambda: stack.central.num_known_blocks() >= len(PREFIX) // 4)
    known = stack.central.num_known_blocks()
    await stack.stop_central()
    await stack.start_central()
    await stack.until(lambda: stack.dispatcher.linked and stack.central.num_known_blocks() == known)
