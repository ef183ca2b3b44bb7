"""Groups die under live streams, and clients do not notice while another group can go on."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blockyard.cluster.resuming_stream import MAX_MOVES
from blockyard.scheduler.group_load import ClusterLoad
from blockyard.scheduler.request import FinishReason, RefusalCode, RequestRefused, RequestSpec
from blockyard.workers.fake import witness_generate

VOCAB = 251
Spec = Callable[..., RequestSpec]


def oracle(spec: RequestSpec, choice: int = 0) -> list[int]:
    return witness_generate(
        spec.prompt_token_ids, spec.sampling.max_tokens or 0, VOCAB, (), choice=choice
    )


class Reader:
    """A client: its tokens by choice, and how many have come."""

    def __init__(self, spec: RequestSpec, stream: Any) -> None:
        self.spec = spec
        self.stream = stream
        self.tokens: list[list[int]] = [[] for _ in range(spec.num_choices)]
        self.task = asyncio.create_task(self._read())

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))

    async def until_more(self, stack: Any, num_tokens: int) -> None:
        enough = self.num_tokens + num_tokens
        await stack.until(lambda: self.num_tokens >= enough)

    async def _read(self) -> None:
        ended = []
        async for update in self.stream:
            self.tokens[update.choice].extend(update.token_ids)
            if update.finish_reason is not None:
                assert update.finish_reason is FinishReason.LENGTH
                ended.append(update.choice)
        assert sorted(ended) == list(range(self.spec.num_choices))

    async def check(self) -> None:
        await self.task
        assert self.tokens == [oracle(self.spec, c) for c in range(self.spec.num_choices)]


def kill(group: Any) -> None:
    group.workers[0].fault = RuntimeError("the device fell off the bus")


def clean(group: Any) -> bool:
    group.server.check()
    ledger = group.server.ledger()
    blocks = ledger.blocks
    return bool(
        group.server.engine.num_requests == 0 and blocks.free + blocks.cached == blocks.total
    )


async def test_streams_of_a_group_that_dies_go_on_at_another(stack: Any, spec: Spec) -> None:
    dying = await stack.add_group(num_blocks=40)
    surviving = await stack.add_group(num_blocks=40, block_size=8)
    readers = []
    for number in range(24):
        asked = spec(f"r{number}", tuple(range(number + 1, number + 12)), 40)
        asked = replace(asked, num_choices=1 + number % 3)
        readers.append(Reader(asked, await stack.dispatcher.submit("witness", asked)))
    # Some have begun, some wait; both groups have a part of them.
    await stack.until(lambda: sum(reader.num_tokens for reader in readers) > 60)
    assert dying.server.engine.num_requests and surviving.server.engine.num_requests
    kill(dying)
    await asyncio.gather(*(reader.check() for reader in readers))
    assert "fell off the bus" in dying.server.lost
    await stack.until(lambda: clean(surviving))
    assert surviving.server.ledger().recomputed_tokens > 0


async def test_a_request_survives_as_many_losses_as_are_allowed(stack: Any, spec: Spec) -> None:
    groups = [await stack.add_group() for _ in range(MAX_MOVES + 1)]
    asked = spec("a", (1, 2, 3), 200)
    reader = Reader(asked, await stack.dispatcher.submit("witness", asked))
    for _ in range(MAX_MOVES):
        await reader.until_more(stack, 5)
        (serving,) = (group for group in groups if group.server.engine.num_requests)
        kill(serving)
        await stack.until(lambda lost=serving: lost.server.lost is not None)
    await reader.check()


async def test_one_that_brings_groups_down_does_not_bring_down_all(stack: Any, spec: Spec) -> None:
    groups = [await stack.add_group() for _ in range(MAX_MOVES + 2)]
    for group in groups:
        kill(group)
    reader = Reader(
        spec("a", (1, 2, 3), 99), await stack.dispatcher.submit("witness", spec("a", (1, 2, 3), 99))
    )
    with pytest.raises(RequestRefused) as lost:
        await reader.task
    assert lost.value.code is RefusalCode.UNAVAILABLE
    assert [group.server.lost is None for group in groups].count(True) == 1


async def test_nobody_is_told_of_a_pool_that_is_too_small_to_go_on(stack: Any, spec: Spec) -> None:
    large = await stack.add_group(num_blocks=60)
    small = await stack.add_group(num_blocks=10)
    asked = spec("a", tuple(range(1, 100)), 100)
    reader = Reader(asked, await stack.dispatcher.submit("witness", asked))
    await stack.until(lambda: reader.num_tokens > 3)
    kill(large)
    with pytest.raises(RequestRefused) as lost:
        await reader.task
    assert (lost.value.code, lost.value.field) == (RefusalCode.UNAVAILABLE, "")
    assert "lost" in lost.value.message
    assert clean(small)


async def test_who_leaves_while_a_request_moves_leaves_nothing_behind(
    stack: Any, spec: Spec
) -> None:
    dying, surviving = await stack.add_group(), await stack.add_group()
    readers = []
    for number in range(12):
        asked = replace(spec(f"r{number}", (number, 5), 150), num_choices=2)
        readers.append(Reader(asked, await stack.dispatcher.submit("witness", asked)))
    await stack.until(lambda: all(reader.num_tokens for reader in readers))
    kill(dying)
    await stack.until(lambda: dying.server.lost is not None)
    for number, reader in enumerate(readers):
        for _ in range(number % 4):
            await asyncio.sleep(0)
        if number % 3 == 0:
            reader.task.cancel()
        await reader.stream.abort(None if number % 3 == 0 else number % 2)
    for number, reader in enumerate(readers):
        if number % 3:
            other = 1 - number % 2
            with pytest.raises(AssertionError):  # one choice was called off and never ended
                await reader.task
            assert reader.tokens[other] == oracle(reader.spec, other)
    await stack.until(lambda: clean(surviving))


async def test_an_absent_max_tokens_stays_what_it_was(stack: Any, spec: Spec) -> None:
    dying = await stack.add_group(num_blocks=10)
    asked = spec("a", (1, 2, 3), 1)
    asked = replace(asked, sampling=replace(asked.sampling, max_tokens=None))
    reader = Reader(asked, await stack.dispatcher.submit("witness", asked))
    await stack.until(lambda: reader.num_tokens > 3)
    await stack.add_group(num_blocks=60)
    kill(dying)
    await reader.task
    assert reader.tokens[0] == witness_generate((1, 2, 3), 10 * 4 - 3 + 1, VOCAB, ())


async def test_streams_of_the_only_group_wait_for_the_next_one(stack: Any, spec: Spec) -> None:
    stack.dispatcher._resume_seconds = 60.0
    dying = await stack.add_group(num_blocks=700)
    readers = []
    for number in range(10):
        asked = replace(spec(f"r{number}", (number, 5), 150), num_choices=1 + number % 2)
        readers.append(Reader(asked, await stack.dispatcher.submit("witness", asked)))
    await stack.until(lambda: all(reader.num_tokens for reader in readers))
    kill(dying)
    await stack.until(lambda: dying.server.lost is not None)
    await stack.until(lambda: stack.dispatcher.group_ids == ())
    await stack.until(lambda: stack.central.load("witness", 16) == ClusterLoad((), 0, len(readers)))
    stack.groups.remove(dying)
    successor = await stack.add_group(num_blocks=700)
    await asyncio.gather(*(reader.check() for reader in readers))
    await stack.until(lambda: clean(successor))
    await stack.until(lambda: stack.central.load("witness", 16).unbound_requests == 0)
    await dying.close()


async def test_a_wire_that_breaks_is_made_again_to_the_same_group(stack: Any, spec: Spec) -> None:
    stack.dispatcher._resume_seconds = 60.0
    group = await stack.add_group()
    asked = spec("a", (1, 2, 3), 200)
    reader = Reader(asked, await stack.dispatcher.submit("witness", asked))
    for _ in range(MAX_MOVES):
        await reader.until_more(stack, 5)
        stack.dispatcher._groups._links["group-0"]._connection.abort()
    await reader.check()
    await stack.until(lambda: clean(group))


async def test_who_waits_for_a_group_too_long_is_told(stack: Any, spec: Spec) -> None:
    stack.dispatcher._resume_seconds = 0.3
    dying = await stack.add_group()
    reader = Reader(
        spec("a", (1, 2, 3), 99), await stack.dispatcher.submit("witness", spec("a", (1, 2, 3), 99))
    )
    kill(dying)
    with pytest.raises(RequestRefused) as lost:
        await reader.task
    assert lost.value.code is RefusalCode.UNAVAILABLE
    await stack.until(lambda: stack.central.load("witness", 16) == ClusterLoad((), 0, 0))


async def test_a_new_request_waits_for_a_group_only_where_they_come_on_demand(
    stack: Any, spec: Spec
) -> None:
    asked = replace(spec("a", (1, 2, 3), 20), name="mine")
    stack.dispatcher._resume_seconds = 60.0
    await stack.until(lambda: stack.dispatcher.linked)
    assert not await stack.dispatcher.ready()
    with pytest.raises(RequestRefused, match="no group serves witness"):
        await stack.dispatcher.submit("witness", asked)
    stack.dispatcher._on_demand = frozenset({"witness"})
    assert await stack.dispatcher.ready()
    waiting = asyncio.create_task(stack.dispatcher.submit("witness", asked))
    await stack.until(lambda: stack.central.load("witness", 16) == ClusterLoad((), 0, 1))
    await stack.stop_central()  # the next one is told, too
    await stack.start_central()
    await stack.until(lambda: stack.central.load("witness", 16) == ClusterLoad((), 0, 1))
    await stack.add_group()
    await Reader(asked, await waiting).check()
    assert stack.central.load("witness", 16).unbound_requests == 0


async def test_who_waits_where_blocks_lack_moves_to_where_they_do_not(
    stack: Any, spec: Spec
) -> None:
    full = await stack.add_group(num_blocks=40)
    readers = []
    for number in range(8):
        asked = spec(f"r{number}", tuple(range(number + 1, number + 30)), 80)
        readers.append(Reader(asked, await stack.dispatcher.submit("witness", asked)))
    await stack.until(lambda: full.server.ledger().requests.waiting > 2)
    helper = await stack.add_group(num_blocks=400)
    await asyncio.gather(*(reader.check() for reader in readers))
    reliever = stack.central.reliever
    await stack.until(lambda: clean(helper) and clean(full))
    assert helper.server.ledger().step > 0, "nothing moved"
    assert 0 < reliever.num_moved <= reliever.num_ordered
    assert full.server.lost is None


async def test_a_group_that_drains_lets_nobody_go(stack: Any, spec: Spec) -> None:
    full = await stack.add_group(num_blocks=40)
    readers = []
    for number in range(8):
        asked = spec(f"r{number}", tuple(range(number + 1, number + 30)), 80)
        readers.append(Reader(asked, await stack.dispatcher.submit("witness", asked)))
    await stack.until(lambda: full.server.ledger().requests.waiting > 2)
    full.server.start_drain()
    assert full.server.yield_requests("group-9", 8, 10_000) == 0, "others drain as well"
    await asyncio.gather(*(reader.check() for reader in readers))


async def test_a_request_that_moved_may_still_lose_as_many_groups(stack: Any, spec: Spec) -> None:
    giver = await stack.add_group()
    taker = await stack.add_group()
    asked = spec("a", (1, 2, 3), 200)
    reader = Reader(asked, await stack.dispatcher.submit("witness", asked))
    await reader.until_more(stack, 5)
    (serving,) = (g for g in (giver, taker) if g.server.engine.num_requests)
    assert serving.server.yield_requests("group-9", 5, 1000) == 0, "it has a place, and keeps it"
    kill(serving)
    await reader.check()
