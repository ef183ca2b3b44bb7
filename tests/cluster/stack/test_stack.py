"""Requests through ingress dispatcher, central scheduler, engine and workers, over real wires."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from blockyard.scheduler.request import FinishReason, RefusalCode, RequestRefused, RequestSpec
from blockyard.workers.fake import witness_generate

VOCAB = 251

Spec = Callable[..., RequestSpec]
Collected = Callable[..., Awaitable[Any]]


def oracle(spec: RequestSpec) -> list[int]:
    assert spec.sampling.max_tokens is not None
    return witness_generate(spec.prompt_token_ids, spec.sampling.max_tokens, VOCAB, ())


@pytest.mark.parametrize("ranks", [1, 2, 3])
async def test_many_requests_at_once_equal_the_oracle(
    stack: Any, spec: Spec, collected: Collected, ranks: int
) -> None:
    # 40 requests of up to 60 tokens over 160 slots: preemption is certain.
    group = await stack.add_group(num_blocks=40, ranks=ranks)
    chance = random.Random(1)
    specs = [
        spec(f"r{n}", tuple(chance.randrange(VOCAB) for _ in range(chance.randrange(1, 40))), 20)
        for n in range(40)
    ]

    async def run(one: RequestSpec) -> None:
        tokens, updates = await collected(await stack.dispatcher.submit("witness", one))
        assert tokens == oracle(one)
        assert updates[-1].finish_reason is FinishReason.LENGTH
        assert all(update.finish_reason is None for update in updates[:-1])

    await asyncio.gather(*(run(one) for one in specs))
    await stack.until(stack.idle)
    ledger = group.server.ledger()
    assert ledger.preemptions > 0
    assert ledger.stalled_steps == 0


async def test_an_abort_frees_the_blocks_within_one_step(stack: Any, spec: Spec) -> None:
    group = await stack.add_group()
    worker = group.workers[0]
    worker.gate.clear()
    stream = await stack.dispatcher.submit("witness", spec("a", (1, 2, 3, 4, 5), 100))
    await asyncio.to_thread(worker.entered.wait, 10)
    assert group.server.ledger().blocks.active == 2
    await stream.abort()
    await stream.abort()
    await stack.until(lambda: group.server.ledger().blocks.active == 0)
    # The step in flight may still write to them.
    assert group.server.ledger().blocks.fenced == 2
    worker.gate.set()
    await stack.until(stack.idle)
    assert group.server.ledger().step == 1


async def test_an_ingress_that_dies_frees_all_its_blocks(stack: Any, spec: Spec) -> None:
    group = await stack.add_group()
    worker = group.workers[0]
    worker.gate.clear()
    for number in range(5):
        await stack.dispatcher.submit("witness", spec(f"r{number}", (number + 1,) * 9, 100))
    await stack.dispatcher.close()
    worker.gate.set()
    await stack.until(stack.idle)
    assert group.server.ledger().step <= 2


async def test_streams_dropped_at_random_leave_clean_books(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    group = await stack.add_group(num_blocks=40, ranks=2)
    chance = random.Random(2)

    async def drop(number: int) -> None:
        prompt = tuple(chance.randrange(VOCAB) for _ in range(chance.randrange(1, 60)))
        stream = await stack.dispatcher.submit("witness", spec(f"d{number}", prompt, 50))
        left = chance.choice([0, 1, 5, 49, 50])
        if left:
            async for update in stream:
                left -= len(update.token_ids)
                if left <= 0:
                    break
        await stream.abort()

    await asyncio.gather(*(drop(number) for number in range(200)))
    await stack.until(stack.idle)
    for number in range(5):
        one = spec(f"after{number}", (number, 7, 7), 30)
        tokens, _ = await collected(await stack.dispatcher.submit("witness", one))
        assert tokens == oracle(one)
    await stack.until(stack.idle)
    assert group.server.ledger().stalled_steps == 0


async def test_a_slow_reader_gets_all_tokens_in_few_updates(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    await stack.add_group()
    one = spec("slow", (3, 1, 4), 100)
    stream = await stack.dispatcher.submit("witness", one)
    await stack.until(stack.idle)  # nobody read while it ran
    tokens, updates = await collected(stream)
    assert tokens == oracle(one)
    assert len(updates) < 10  # a hundred steps, merged
    assert updates[-1].timings is not None


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code", "field"),
    [
        ((), 5, RefusalCode.INVALID, "prompt"),
        ((1,) * 256, 1, RefusalCode.INVALID, "prompt"),
        ((1,) * 200, 100, RefusalCode.INVALID, "max_tokens"),
    ],
)
async def test_what_can_never_fit_is_refused_and_the_next_request_works(
    stack: Any,
    spec: Spec,
    collected: Collected,
    prompt: tuple[int, ...],
    max_tokens: int,
    code: RefusalCode,
    field: str,
) -> None:
    await stack.add_group()
    with pytest.raises(RequestRefused) as refused:
        await stack.dispatcher.submit("witness", spec("bad", prompt, max_tokens))
    assert refused.value.code is code
    assert refused.value.field == field
    one = spec("good", (1, 2), 5)
    tokens, _ = await collected(await stack.dispatcher.submit("witness", one))
    assert tokens == oracle(one)


async def test_the_id_of_a_live_request_is_not_taken_twice(stack: Any, spec: Spec) -> None:
    group = await stack.add_group()
    group.workers[0].gate.clear()
    first = await stack.dispatcher.submit("witness", spec("same", (1,), 50))
    with pytest.raises(RequestRefused) as refused:
        await stack.dispatcher.submit("witness", spec("same", (2,), 50))
    assert refused.value.field == "request_id"
    await first.abort()
    again = await stack.dispatcher.submit("witness", spec("same", (2,), 5))
    group.workers[0].gate.set()
    tokens = [token async for update in again for token in update.token_ids]
    assert tokens == witness_generate((2,), 5, VOCAB, ())


async def test_a_cancelled_submission_leaves_nothing_behind(stack: Any, spec: Spec) -> None:
    await stack.add_group()
    for number in range(50):
        task = asyncio.create_task(stack.dispatcher.submit("witness", spec(f"c{number}", (1,), 99)))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]
        if not isinstance(result, BaseException):
            await result.abort()
    await stack.until(stack.idle)


@pytest.mark.parametrize("failing_rank", [0, 1])
async def test_a_failing_rank_ends_its_requests_as_unavailable(
    stack: Any, spec: Spec, collected: Collected, failing_rank: int
) -> None:
    group = await stack.add_group(ranks=2)
    group.workers[0].gate.clear()
    streams = [
        await stack.dispatcher.submit("witness", spec(f"r{number}", (number + 1,), 99))
        for number in range(3)
    ]
    group.workers[failing_rank].fault = RuntimeError("the device fell off the bus")
    group.workers[0].gate.set()
    for stream in streams:
        with pytest.raises(RequestRefused) as lost:
            await collected(stream)
        assert lost.value.code is RefusalCode.UNAVAILABLE
        assert "bus" not in lost.value.message
    assert "fell off the bus" in group.server.lost
    with pytest.raises(RequestRefused) as refused:
        await stack.dispatcher.submit("witness", spec("late", (1,), 5))
    assert refused.value.code is RefusalCode.UNAVAILABLE


async def test_requests_go_on_while_the_central_scheduler_is_down(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    await stack.add_group()
    await stack.add_group()
    await stack.stop_central()
    await stack.until(lambda: not stack.dispatcher.linked)
    for number in range(6):
        one = spec(f"r{number}", (number, 9), 10)
        tokens, _ = await collected(await stack.dispatcher.submit("witness", one))
        assert tokens == oracle(one)
    await stack.start_central()
    await stack.until(lambda: stack.dispatcher.linked)
    # A new central scheduler knows no group until the engines have found it.
    one = spec("early", (8, 9), 10)
    tokens, _ = await collected(await stack.dispatcher.submit("witness", one))
    assert tokens == oracle(one)
    await stack.until(lambda: len(stack.central.group_ids) == 2)
    stack.central.check()
    assert await stack.dispatcher.ready()


async def test_a_burst_is_spread_over_groups(stack: Any, spec: Spec) -> None:
    first = await stack.add_group(num_blocks=64)
    second = await stack.add_group(num_blocks=64)
    for group in (first, second):
        group.workers[0].gate.clear()
    streams = [
        await stack.dispatcher.submit("witness", spec(f"r{number}", (1,) * 8, 50))
        for number in range(12)
    ]
    counts = [group.server.engine.num_requests for group in (first, second)]
    assert sum(counts) == 12
    assert min(counts) >= 4
    for stream in streams:
        await stream.abort()
    for group in (first, second):
        group.workers[0].gate.set()
    await stack.until(stack.idle)


async def test_drain_finishes_what_was_admitted_and_refuses_newcomers(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    group = await stack.add_group()
    group.workers[0].gate.clear()
    one = spec("last", (5, 5), 40)
    stream = await stack.dispatcher.submit("witness", one)
    draining = asyncio.create_task(stack.central.drain(20))
    await stack.until(lambda: group.server.draining)
    assert not await stack.dispatcher.ready()
    with pytest.raises(RequestRefused) as refused:
        await stack.dispatcher.submit("witness", spec("late", (1,), 5))
    assert refused.value.code is RefusalCode.UNAVAILABLE
    assert not draining.done()
    group.workers[0].gate.set()
    tokens, _ = await collected(stream)
    assert tokens == oracle(one)
    assert await draining


async def test_a_drain_that_takes_too_long_says_so(stack: Any, spec: Spec) -> None:
    group = await stack.add_group()
    group.workers[0].gate.clear()
    await stack.dispatcher.submit("witness", spec("endless", (1,), 99))
    assert not await stack.central.drain(0.05)


async def test_the_books_of_every_group_are_reported(stack: Any, spec: Spec) -> None:
    group = await stack.add_group(num_blocks=50)
    await stack.add_group(num_blocks=30)
    group.workers[0].gate.clear()
    stack.groups[1].workers[0].gate.clear()
    await stack.dispatcher.submit("witness", spec("a", (1,) * 10, 50))
    reports = {report.group_id: report for report in await stack.dispatcher.reports()}
    assert {report.ledger.blocks.total for report in reports.values()} == {50, 30}
    for report in reports.values():
        report.ledger.check()
    busy = max(reports.values(), key=lambda report: report.ledger.blocks.active)
    assert busy.ledger.requests.running == 1
    assert busy.ledger.slots.promised == 10
    assert busy.ledger.slots.empty_tail == 2
