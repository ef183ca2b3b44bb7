"""Adapters of a deployment of several groups, over real wires: all of them have the same."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from blockyard.cluster.resting import Rest, Weights
from blockyard.cluster.states.engine_state import EngineState
from blockyard.cluster.states.model_state import ModelState
from blockyard.scheduler.block_keys import NO_EXTRAS, PrefixExtras
from blockyard.scheduler.request import RefusalCode, RequestRefused, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.adapter_description import AdapterDescription, AdapterRefused
from blockyard.workers.fake import witness_generate

VOCAB = 251
PROMPT = tuple(range(3, 40))


def adapter(name: str, version: str = "1") -> AdapterDescription:
    return AdapterDescription(name, f"/adapters/{name}", version, 4)


class Host:
    """Loads adapters on the workers of a stack's group, unless it is told not to."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.refused: set[str] = set()

    async def load_adapter(self, asked: AdapterDescription) -> None:
        if asked.name in self.refused:
            raise AdapterRefused("its files differ between nodes")
        for worker in self._group.workers:
            worker.load_adapter(asked)

    async def drop_adapter(self, adapter_id: str) -> None:
        for worker in self._group.workers:
            worker.drop_adapter(adapter_id)


class Adapted:
    """Groups that take adapters, and requests that ask for them."""

    def __init__(self, stack: Any) -> None:
        self.stack = stack
        self.hosts: list[Host] = []
        self._asked = 0

    async def add(self, *begins_with: AdapterDescription) -> Host:
        hosts = self.hosts

        async def prepare(server: Any, group: Any) -> EngineState:
            hosts.append(Host(group))
            server.engine.adapters.host = hosts[-1]
            for each in begins_with:
                await server.engine.adapters.load(each)
            rest = Rest(server.engine.succession, _never, _never, Weights("/nowhere"))
            state = ModelState(adapters=begins_with)
            return EngineState(rest, "/nowhere", None, state, server.engine.adapters)

        await self.stack.add_group(prepare=prepare)
        return hosts[-1]

    def served(self) -> list[tuple[AdapterDescription, ...]]:
        return [group.server.engine.adapters.served for group in self.stack.groups]

    async def begin(self, of: AdapterDescription | None, max_tokens: int = 6) -> Any:
        self._asked += 1
        extras = PrefixExtras(of.name, of.version) if of is not None else NO_EXTRAS
        sampling = SamplingParams(max_tokens=max_tokens)
        spec = RequestSpec(f"r{self._asked}", PROMPT, sampling, extras=extras)
        return await self.stack.dispatcher.submit("witness", spec)


async def _never(*arguments: Any) -> Any:
    raise AssertionError("nobody sleeps here")


async def _rest(news: Any) -> list[int]:
    return [token async for update in news for token in update.token_ids]


def wanted(of: AdapterDescription | None, max_tokens: int = 6) -> list[int]:
    name = of.adapter_id if of is not None else ""
    return witness_generate(PROMPT, max_tokens, VOCAB, adapter=name)


@pytest.fixture
async def adapted(stack: Any) -> AsyncIterator[Adapted]:
    yield Adapted(stack)


async def test_o05_every_group_serves_what_one_ingress_was_told_to(
    adapted: Adapted, collected: Callable[..., Any]
) -> None:
    stack = adapted.stack
    for _ in range(2):
        await adapted.add()
    one, two = adapter("a", "1"), adapter("a", "2")
    await stack.dispatcher.load_adapter("witness", one)
    assert stack.dispatcher.adapters("witness") == (one,)
    assert adapted.served() == [(one,), (one,)]
    for found in (0, 36):
        tokens, updates = await collected(await adapted.begin(one))
        assert (tokens, updates[-1].cached_tokens) == (wanted(one), found)
        # Requests go to where their prefix is, once that is known.
        await stack.until(lambda: stack.central.num_known_blocks() > 0)
    await stack.dispatcher.load_adapter("witness", one)  # nothing happens
    with pytest.raises(RequestRefused, match="unload it first") as refused:
        await stack.dispatcher.load_adapter("witness", two)
    assert refused.value.code is RefusalCode.EXISTS
    await stack.dispatcher.unload_adapter("witness", "a")
    assert adapted.served() == [(), ()]
    await stack.dispatcher.load_adapter("witness", two)
    tokens, updates = await collected(await adapted.begin(two))
    assert (tokens, updates[-1].cached_tokens) == (wanted(two), 0)
    assert (await collected(await adapted.begin(None)))[0] == wanted(None)


async def test_when_one_group_cannot_none_does(adapted: Adapted) -> None:
    stack = adapted.stack
    kept = adapter("kept")
    await adapted.add(kept)
    host = await adapted.add(kept)
    host.refused = {"a"}
    with pytest.raises(RequestRefused, match="differ between nodes") as refused:
        await stack.dispatcher.load_adapter("witness", adapter("a"))
    assert (refused.value.code, refused.value.field) == (RefusalCode.INVALID, "adapter")
    await stack.until(lambda: adapted.served() == [(kept,), (kept,)])
    assert stack.dispatcher.adapters("witness") == (kept,)
    host.refused = set()
    await stack.dispatcher.load_adapter("witness", adapter("a"))
    assert adapted.served() == [(kept, adapter("a"))] * 2


async def test_a_group_that_comes_later_hears_of_all_changes(
    adapted: Adapted, collected: Callable[..., Any]
) -> None:
    stack = adapted.stack
    first, later = adapter("first"), adapter("later")
    await adapted.add(first)
    await stack.dispatcher.load_adapter("witness", later)
    await stack.dispatcher.unload_adapter("witness", "first")
    await adapted.add(first)  # as it was configured
    await stack.until(lambda: adapted.served() == [(later,), (later,)])
    # A central scheduler that was started anew learns from the groups.
    await stack.stop_central()
    await stack.start_central()
    await stack.until(lambda: len(stack.central.group_ids) == 2 and stack.dispatcher.linked)
    assert stack.dispatcher.adapters("witness") == (later,)
    await stack.dispatcher.load_adapter("witness", first)
    assert adapted.served() == [(later, first)] * 2
    assert (await collected(await adapted.begin(first)))[0] == wanted(first)


async def test_who_runs_goes_on_in_a_group_that_still_has_its_adapter(adapted: Adapted) -> None:
    """One group is lost in the middle; the other takes the request over, withdrawn or not."""
    stack = adapted.stack
    one = adapter("a")
    for _ in range(2):
        await adapted.add(one)
    running = await adapted.begin(one, 150)
    news = aiter(running)
    seen = list((await anext(news)).token_ids)
    mine, other = sorted(stack.groups, key=lambda group: not group.server.engine.serves("r1"))
    # Somebody has to use it there too, or it is dropped at once.
    other.workers[0].gate.clear()
    sampling = SamplingParams(max_tokens=5)
    extras = PrefixExtras(one.name, one.version)
    other.server.engine.submit(RequestSpec("keeper", (1, 2), sampling, extras=extras))
    await stack.dispatcher.unload_adapter("witness", "a")
    assert other.server.engine.adapters.leaving == (one.adapter_id,)
    reading = asyncio.create_task(_rest(news))
    mine.workers[0].fault = RuntimeError("it broke")
    await stack.until(lambda: other.server.engine.serves("r1"))
    other.workers[0].gate.set()
    assert seen + await reading == wanted(one, 150)
    with pytest.raises(RequestRefused, match="not loaded here"):
        await adapted.begin(one)


async def test_while_the_central_scheduler_is_away_nothing_is_changed(adapted: Adapted) -> None:
    stack = adapted.stack
    await adapted.add()
    await stack.stop_central()
    await stack.until(lambda: not stack.dispatcher.linked)
    with pytest.raises(RequestRefused, match="is not there") as refused:
        await stack.dispatcher.load_adapter("witness", adapter("a"))
    assert refused.value.code is RefusalCode.UNAVAILABLE
    assert adapted.served() == [()]
