"""O05 for adapters: loaded, unloaded and loaded anew under one name, with requests under way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from blockyard.cluster.dispatch import TokenStream
from blockyard.cluster.local_dispatcher import LocalDispatcher
from blockyard.scheduler.block_keys import NO_EXTRAS, PrefixExtras
from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.request import (
    FinishReason,
    RefusalCode,
    RequestRefused,
    RequestSpec,
    RequestUpdate,
)
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.adapter_description import AdapterDescription
from blockyard.workers.config import WorkerConfig
from blockyard.workers.description import ModelDescription
from blockyard.workers.fake import WitnessWorker, witness_generate

VOCABULARY, CONTEXT, BLOCK = 50_000, 512, 4
PROMPT = tuple(range(100, 141))
MODEL = ModelDescription("witness", "", "Witness", CONTEXT, VOCABULARY, ())


def adapter(name: str, version: str) -> AdapterDescription:
    return AdapterDescription(name, f"/adapters/{name}", version, 4)


@dataclass
class Rig:
    """The real scheduler and engine over the witness."""

    dispatcher: LocalDispatcher
    worker: WitnessWorker
    numbers: Any = field(default_factory=count)

    @property
    def adapters(self) -> Any:
        return self.dispatcher.engine.adapters

    async def begin(
        self,
        with_adapter: AdapterDescription | None = None,
        prompt: tuple[int, ...] = PROMPT,
        max_tokens: int = 8,
        **settings: Any,
    ) -> TokenStream:
        extras = NO_EXTRAS
        if with_adapter is not None:
            extras = PrefixExtras(with_adapter.name, with_adapter.version)
        sampling = SamplingParams(max_tokens=max_tokens)
        spec = RequestSpec(f"r{next(self.numbers)}", prompt, sampling, extras=extras, **settings)
        return await self.dispatcher.submit("witness", spec)

    async def ask(self, *arguments: Any, **settings: Any) -> tuple[list[int], int]:
        """Tokens, and how many of the prompt's were found."""
        return await read(await self.begin(*arguments, **settings))

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not happened():
                await asyncio.sleep(0.001)


async def updates_of(stream: TokenStream) -> list[RequestUpdate]:
    return [update async for update in stream]


async def read(stream: TokenStream) -> tuple[list[int], int]:
    updates = await updates_of(stream)
    assert updates[-1].finish_reason is FinishReason.LENGTH, updates[-1].error
    return [t for update in updates for t in update.token_ids], updates[-1].cached_tokens


def wanted(of: AdapterDescription | None = None, max_tokens: int = 8, **settings: Any) -> list[int]:
    name = of.adapter_id if of is not None else ""
    prompt = settings.pop("prompt", PROMPT)
    return witness_generate(prompt, max_tokens, VOCABULARY, adapter=name, **settings)


@pytest.fixture
async def make_rig() -> AsyncIterator[Callable[..., Any]]:
    made: list[Rig] = []

    async def make(num_blocks: int = 256, depth: int = 1, **limits: Any) -> Rig:
        host = limits.pop("num_host_blocks", 0)
        worker = WitnessWorker(
            WorkerConfig(
                "", CONTEXT, block_size=BLOCK, num_blocks=num_blocks, num_host_blocks=host,
                max_adapters=4,
            ),
            VOCABULARY,
        )  # fmt: skip
        config = SchedulerConfig(CONTEXT, block_size=BLOCK, pipeline_depth=depth, **limits)
        rig = Rig(await LocalDispatcher.start(MODEL, worker, config), worker)
        made.append(rig)
        return rig

    yield make
    for rig in made:
        assert rig.dispatcher.engine.lost is None, rig.dispatcher.engine.lost
        rig.dispatcher.engine.check()
        await rig.dispatcher.close()


async def test_o05_an_adapter_loaded_anew_under_its_name_finds_nothing_of_before(
    make_rig: Any,
) -> None:
    rig = await make_rig()
    first, second = adapter("a", "1"), adapter("a", "2")
    await rig.dispatcher.load_adapter("witness", first)
    assert await rig.ask(first) == (wanted(first), 0)
    assert await rig.ask(first) == (wanted(first), 40)
    assert await rig.ask() == (wanted(), 0)
    await rig.dispatcher.unload_adapter("witness", "a")
    await rig.adapters.wait_dropped()
    await rig.dispatcher.load_adapter("witness", second)
    assert await rig.ask(second) == (wanted(second), 0)
    assert await rig.ask(second) == (wanted(second), 40)
    assert len({tuple(wanted(each)) for each in (None, first, second)}) == 3


async def test_o05_two_names_and_the_base_share_no_blocks(make_rig: Any) -> None:
    rig = await make_rig()
    one, two = adapter("a", "1"), adapter("b", "1")
    for each in (one, two):
        await rig.dispatcher.load_adapter("witness", each)
    streams = [await rig.begin(each) for each in (one, None, two, one, two, None)]
    answers = await asyncio.gather(*map(read, streams))
    assert [tokens for tokens, _ in answers] == [
        wanted(each) for each in (one, None, two, one, two, None)
    ]
    # Each waits for the first of its own kind, and for nobody else.
    assert [found for _, found in answers] == [0, 0, 0, 40, 40, 40]


async def test_o05_who_runs_when_its_adapter_is_replaced_finishes_with_the_old_one(
    make_rig: Any,
) -> None:
    rig = await make_rig()
    old, new = adapter("a", "1"), adapter("a", "2")
    await rig.dispatcher.load_adapter("witness", old)
    running = await rig.begin(old, max_tokens=300)
    news = aiter(running)
    seen = list((await anext(news)).token_ids)
    await rig.dispatcher.unload_adapter("witness", "a")
    with pytest.raises(RequestRefused, match="'a' is not loaded here") as refused:
        await rig.begin(old)
    assert (refused.value.code, refused.value.field) == (RefusalCode.UNAVAILABLE, "model")
    await rig.dispatcher.load_adapter("witness", new)
    with pytest.raises(RequestRefused, match="was replaced by another of its name"):
        await rig.begin(old)
    assert await rig.ask(new) == (wanted(new), 0)
    assert rig.adapters.leaving == (old.adapter_id,)
    assert rig.worker._adapters == {old.adapter_id, new.adapter_id}
    async for update in news:
        seen += update.token_ids
    assert seen == wanted(old, max_tokens=300)
    await rig.adapters.wait_dropped()
    assert rig.worker._adapters == {new.adapter_id}


@pytest.mark.parametrize("depth", [1, 2])
async def test_who_is_given_up_keeps_its_adapter_until_its_steps_have_ended(
    make_rig: Any, depth: int
) -> None:
    """The witness refuses a row of an adapter that it does not know, and the engine is lost."""
    rig = await make_rig(depth=depth)
    one = adapter("a", "1")
    beside = await rig.begin(max_tokens=300, prompt=(1, 2, 3))
    for _ in range(10):
        await rig.dispatcher.load_adapter("witness", one)
        running = await rig.begin(one, max_tokens=300, num_choices=2)
        await anext(aiter(running))
        await rig.dispatcher.unload_adapter("witness", "a")
        await running.abort()
        await rig.adapters.wait_dropped()
        assert rig.worker._adapters == set()
    assert await read(beside) == (wanted(max_tokens=300, prompt=(1, 2, 3)), 0)


async def test_one_that_is_wanted_again_while_it_leaves_stays(make_rig: Any) -> None:
    rig = await make_rig()
    one = adapter("a", "1")
    await rig.dispatcher.load_adapter("witness", one)
    running = await rig.begin(one, max_tokens=200)
    await anext(aiter(running))
    await rig.dispatcher.unload_adapter("witness", "a")
    await rig.dispatcher.load_adapter("witness", one)
    assert rig.adapters.leaving == ()
    assert await rig.ask(one) == (wanted(one), 40)
    await running.abort()
    # Unloaded for good and loaded again, its blocks are still those that it would compute.
    await rig.dispatcher.unload_adapter("witness", "a")
    await rig.adapters.wait_dropped()
    await rig.dispatcher.load_adapter("witness", one)
    assert await rig.ask(one) == (wanted(one), 40)


async def test_another_of_a_name_is_refused_until_that_is_unloaded(make_rig: Any) -> None:
    rig = await make_rig()
    await rig.dispatcher.load_adapter("witness", adapter("a", "1"))
    with pytest.raises(RequestRefused, match="another adapter is loaded as 'a'; unload it first"):
        await rig.dispatcher.load_adapter("witness", adapter("a", "2"))
    assert [each.version for each in rig.dispatcher.adapters("witness")] == ["1"]


@pytest.mark.parametrize("policy", list(PreemptionPolicy))
async def test_preempted_swapped_and_forked_requests_keep_their_adapters(
    make_rig: Any, policy: PreemptionPolicy
) -> None:
    rig = await make_rig(num_blocks=40, num_host_blocks=40, preemption=policy, depth=2)
    kinds = [None, *(adapter(name, "1") for name in "abc")]
    for each in kinds[1:]:
        await rig.dispatcher.load_adapter("witness", each)
    asked = [(kinds[n % 4], PROMPT[: 20 + n], 1 + (n % 3 == 0)) for n in range(16)]
    streams = [
        await rig.begin(each, prompt=prompt, max_tokens=40, num_choices=choices)
        for each, prompt, choices in asked
    ]
    answers = await asyncio.gather(*map(updates_of, streams))
    assert rig.dispatcher.engine.ledger().preemptions > 0
    for (each, prompt, choices), updates in zip(asked, answers, strict=True):
        for choice in range(choices):
            tokens = [t for u in updates if u.choice == choice for t in u.token_ids]
            assert tokens == wanted(each, 40, prompt=prompt, choice=choice)


async def test_adapters_come_and_go_under_load(make_rig: Any) -> None:
    rig = await make_rig(num_blocks=80, depth=2)
    ended = asyncio.Event()
    served = 0

    async def traffic(number: int) -> None:
        nonlocal served
        prompt = PROMPT[number:]
        while not ended.is_set():
            known = rig.dispatcher.adapters("witness")
            each = known[number % len(known)] if known and number % 3 else None
            try:
                tokens, _ = await rig.ask(each, prompt=prompt, max_tokens=12)
            except RequestRefused as refusal:
                # Only who chose one that went at that moment; here nothing lies between.
                raise AssertionError(refusal.message) from refusal
            assert tokens == wanted(each, 12, prompt=prompt)
            served += 1

    clients = [asyncio.create_task(traffic(number)) for number in range(9)]
    for turn in range(12):
        for name in "abc":
            await rig.dispatcher.load_adapter("witness", adapter(name, str(turn)))
        before = served
        await rig.until(lambda before=before: served > before + 9)
        for name in "abc":
            await rig.dispatcher.unload_adapter("witness", name)
        await rig.adapters.wait_dropped()
        assert rig.worker._adapters == set()
    ended.set()
    await asyncio.gather(*clients)
    assert rig.dispatcher.engine.ledger().stalled_steps == 0


async def test_who_lost_its_adapter_is_told(make_rig: Any) -> None:
    rig = await make_rig()
    one = adapter("a", "1")
    await rig.dispatcher.load_adapter("witness", one)
    running = await rig.begin(one, max_tokens=300, num_choices=2)
    beside = await rig.begin(max_tokens=30)
    await anext(aiter(running))
    rig.adapters.lost(one.adapter_id)
    ends = [u for u in await updates_of(running) if u.finish_reason is not None]
    assert sorted(end.choice for end in ends) == [0, 1]
    assert all("its adapter could not be loaded again" in end.error for end in ends)
    assert rig.dispatcher.adapters("witness") == ()
    assert await read(beside) == (wanted(max_tokens=30), 0)
