"""Requests that wait until any group has room: explained, ended, moved on, and none lost."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from blockyard.cluster import binder
from blockyard.cluster.books.central_books import CentralBooks
from blockyard.cluster.books.central_message import central_message
from blockyard.cluster.books.central_metrics import CentralMetrics
from blockyard.cluster.metrics import encode_reports
from blockyard.scheduler.explain import WaitReason
from blockyard.scheduler.group_board import LEAST_LEAD
from blockyard.scheduler.request import FinishReason, RefusalCode, RequestRefused, RequestSpec
from blockyard.workers.fake import witness_generate

pytestmark = pytest.mark.timeout(60)

VOCAB = 251
PLACES = 2
Spec = Callable[..., RequestSpec]
Collected = Callable[..., Coroutine[Any, Any, Any]]


def mine(spec: Spec, name: str, prompt: int = 3, max_tokens: int = 6, **more: Any) -> RequestSpec:
    tokens = tuple((len(name) * 31 + ord(name[-1]) + place) % VOCAB for place in range(prompt))
    return replace(spec(f"own-{name}", tokens, max_tokens), name=name, tenant="corp", **more)


async def held_group(stack: Any) -> Any:
    """A group of two places whose steps wait."""
    group = await stack.add_group(max_running=PLACES)
    group.workers[0].gate.clear()
    return group


async def fill(stack: Any, spec: Spec) -> list[Any]:
    """As many requests as a group that is held takes; their streams."""
    streams: list[Any] = []
    while True:
        asked = mine(spec, f"f{len(streams)}")
        task = asyncio.create_task(stack.dispatcher.submit("witness", asked))
        await stack.until(lambda task=task: task.done() or len(stack.central.binding))
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stack.until(lambda: not len(stack.central.binding))
            return streams
        streams.append(await task)


async def waiting(stack: Any, asked: RequestSpec) -> "asyncio.Task[Any]":
    before = len(stack.central.binding)
    task = asyncio.create_task(stack.dispatcher.submit("witness", asked))
    await stack.until(lambda: len(stack.central.binding) == before + 1)
    return task


async def read(stream: Any, asked: RequestSpec, collected: Collected) -> None:
    tokens, _ = await collected(stream)
    limit = asked.sampling.max_tokens or 0
    assert tokens == witness_generate(asked.prompt_token_ids, limit, VOCAB)


def open_gates(stack: Any) -> None:
    for group in stack.groups:
        group.workers[0].gate.set()


async def test_what_waits_is_explained_ended_and_in_the_books(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    await held_group(stack)
    streams = await fill(stack, spec)
    first = await waiting(stack, mine(spec, "w0"))
    second = await waiting(stack, mine(spec, "w1", num_choices=2))
    (found,) = await stack.dispatcher.requests("corp", "w1")
    assert [(each.reason, each.place, each.choice) for each in found.explanations] == [
        (WaitReason.ROOM, 1, choice) for choice in (0, 1)
    ]
    central: CentralBooks = await stack.dispatcher.central_books()
    books = central.waiting
    assert (books.queued, books.queued_tokens, books.bound) == (2, 6, len(streams))
    assert len(streams) <= PLACES + LEAST_LEAD
    told = central_message(central)
    assert told is not None
    assert (told.waiting.queued, told.waiting.bound) == (2, len(streams))
    metrics = {
        sample.name: sample.value
        for family in CentralMetrics(central).collect()
        for sample in family.samples
    }
    assert metrics["blockyard_cluster_queued_requests"] == 2
    assert await stack.dispatcher.requests("rival", "w1", call_off=True) == ()
    assert len(await stack.dispatcher.requests("corp", "w1", call_off=True)) == 1
    ends = [update.finish_reason async for update in await second]
    assert ends == [FinishReason.ABORT] * 2
    await stack.until(lambda: len(stack.central.binding) == 1)
    open_gates(stack)
    await asyncio.gather(*(collected(stream) for stream in streams))
    await read(await first, mine(spec, "w0"), collected)
    await stack.until(stack.idle)
    await stack.until(lambda: not stack.central.names)
    assert stack.central.books().waiting.bound_late == 1


async def test_the_wait_for_any_group_is_counted_as_waiting(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    away = 0.0
    stack.dispatcher.meters[0].clock = lambda: time.monotonic() + away
    await held_group(stack)
    streams = await fill(stack, spec)
    late = await waiting(stack, mine(spec, "w0"))
    away = 1000.0
    open_gates(stack)
    await asyncio.gather(*(collected(stream) for stream in (*streams, await late)))
    text = encode_reports((), "", stack.dispatcher.meters)[0].decode()
    (queue,) = (
        family
        for family in text_string_to_metric_families(text)
        if family.name == "blockyard_queue_seconds"
    )
    value = {sample.name.rpartition("_")[2]: sample.value for sample in queue.samples}
    assert value["count"] == len(streams) + 1
    assert 1000 <= value["sum"] < 2000, "of those who had a group the queue there, of one all"


async def test_a_client_that_leaves_while_it_waits_leaves_nothing(stack: Any, spec: Spec) -> None:
    await held_group(stack)
    streams = await fill(stack, spec)
    leaver = await waiting(stack, mine(spec, "w0"))
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    await stack.until(lambda: not len(stack.central.binding))
    for stream in streams:
        await stream.abort()
    open_gates(stack)
    await stack.until(stack.idle)
    await stack.until(lambda: not stack.central.names)


async def test_a_deadline_ends_the_wait(stack: Any, spec: Spec) -> None:
    await held_group(stack)
    streams = await fill(stack, spec)
    with pytest.raises(RequestRefused) as refused:
        await stack.dispatcher.submit("witness", mine(spec, "w0", deadline_seconds=0.1))
    told = refused.value
    assert (told.code, told.field) == (RefusalCode.INVALID, "deadline_seconds")
    await stack.until(lambda: not len(stack.central.binding))
    for stream in streams:
        await stream.abort()


async def test_everybody_is_served_once_whatever_wins_a_place(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    for _ in range(2):
        await stack.add_group(max_running=PLACES)
    asked = [mine(spec, f"r{n}", priority=n % 2) for n in range(40)]

    async def one(each: RequestSpec) -> None:
        await read(await stack.dispatcher.submit("witness", each), each, collected)

    await asyncio.gather(*map(one, asked))
    await stack.until(stack.idle)
    stack.central.check()
    books = stack.central.books().waiting
    assert books.queued == 0 and books.bound == len(asked) and books.bound_late > 0
    # Those that were given up and begun again are not new ones.
    begun = sum(group.server.ledger().prompt_tokens for group in stack.groups)
    assert begun >= sum(len(each.prompt_token_ids) for each in asked)


async def test_when_the_central_scheduler_goes_those_that_wait_are_served_all_the_same(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    group = await held_group(stack)
    streams = await fill(stack, spec)
    asked = [mine(spec, f"w{n}") for n in range(3)]
    tasks = [await waiting(stack, each) for each in asked]
    await stack.stop_central()
    # Nobody waits for one that is gone.
    late = [await task for task in tasks]
    assert group.server.engine.num_requests == len(streams) + len(late)
    await stack.start_central()
    open_gates(stack)
    await asyncio.gather(*(collected(stream) for stream in streams))
    await asyncio.gather(
        *(read(stream, each, collected) for stream, each in zip(late, asked, strict=True))
    )
    await stack.until(stack.idle)


async def test_who_finds_full_queues_without_a_central_scheduler_asks_the_next_one(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    stack.dispatcher._placer._patience_seconds = 50.0
    group = await held_group(stack)
    streams = await fill(stack, spec)
    limits = group.server.engine.scheduler.config
    group.server.engine.scheduler.config = replace(limits, max_waiting=LEAST_LEAD)
    asked = mine(spec, "w0")
    task = await waiting(stack, asked)
    await stack.stop_central()
    await stack.until(lambda: stack.dispatcher._room._waiting["witness"] == 1)
    await stack.start_central()
    await stack.until(lambda: len(stack.central.binding) == 1)
    open_gates(stack)
    await asyncio.gather(*(collected(stream) for stream in streams))
    await read(await task, asked, collected)
    assert stack.central.books().waiting.bound_late == 1
    await stack.until(stack.idle)


async def test_a_central_scheduler_that_hangs_is_hung_up_on_by_who_waits(
    stack: Any, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    await held_group(stack)
    streams = await fill(stack, spec)
    task = await waiting(stack, mine(spec, "w0"))
    monkeypatch.setattr(binder, "BIND_SECONDS", 0.05)
    monkeypatch.setattr(stack.central.binding, "tell_places", lambda *asked: None)
    streams.append(await task)
    for stream in streams:
        await stream.abort()


async def test_requests_that_wait_go_on_elsewhere_when_the_only_group_is_lost(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    stack.dispatcher._resume_seconds = stack.dispatcher._placer._patience_seconds = 50.0
    dying = await held_group(stack)
    streams = await fill(stack, spec)
    asked = mine(spec, "w0")
    task = await waiting(stack, asked)
    reading = [asyncio.create_task(collected(stream)) for stream in streams]
    dying.workers[0].fault = RuntimeError("the device fell off the bus")
    open_gates(stack)
    await stack.until(lambda: not stack.central.group_ids)
    stack.groups.remove(dying)
    await dying.close()
    await stack.add_group(max_running=PLACES)
    await read(await task, asked, collected)
    await asyncio.gather(*reading)
