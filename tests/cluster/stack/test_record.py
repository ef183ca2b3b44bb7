"""What a cluster was asked for, recorded over its wires, and replayed."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from blockyard.cluster.books.arrival_log import ArrivalLog
from blockyard.cluster.cli import app
from blockyard.cluster.client import BlockingClient, ServerError
from blockyard.cluster.commands.record import trace_line
from blockyard.cluster.grpc_front import GrpcFront
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate

Spec = Callable[..., RequestSpec]
Collected = Callable[..., Awaitable[Any]]

SALT = bytes(range(32))


@pytest.fixture
async def address(stack: Any) -> AsyncIterator[str]:
    front = GrpcFront(stack.dispatcher, {})
    port = await front.start("127.0.0.1:0")
    yield f"127.0.0.1:{port}"
    await front.stop(None)


async def ask(address: str, after: dict[str, int], salt: bytes = SALT) -> Any:
    def call() -> Any:
        with BlockingClient(address, 20.0) as client:
            return client.arrivals(after, salt)

    return await asyncio.to_thread(call)


async def test_a_recording_replays_to_the_same_prefix_hits(
    stack: Any, address: str, spec: Spec, collected: Collected, tmp_path: Path
) -> None:
    await stack.add_group()
    shared = tuple(range(1, 23))
    await collected(await stack.dispatcher.submit("witness", spec("before", (9, 9, 9), 2)))
    after = dict((await ask(address, {})).next)
    prompts = [(*shared, 50), (*shared, 60, 61), shared[:9], (70, *shared), (*shared, 50, 51)]
    for number, prompt in enumerate(prompts):
        request = replace(spec(f"r{number}", prompt, 4), tenant="acme" if number else "")
        await collected(await stack.dispatcher.submit("witness", request))
    answer = await ask(address, after)
    # Who came before the recording is not in it, and nothing is told twice.
    assert [arrival.prompt_tokens for arrival in answer.arrivals] == list(map(len, prompts))
    assert [arrival.output_tokens for arrival in answer.arrivals] == [4] * 5
    assert not (await ask(address, dict(answer.next))).arrivals

    lines = [trace_line(arrival) for arrival in answer.arrivals]
    entries = list(map(json.loads, lines))
    assert [entry["arrival_s"] for entry in entries] == sorted(e["arrival_s"] for e in entries)
    assert "tenant" not in entries[0]
    assert entries[1]["tenant"] == entries[2]["tenant"] != "acme"
    assert entries[0]["prefix_ids"][:5] == entries[1]["prefix_ids"][:5]
    assert entries[0]["prefix_ids"][0] != entries[3]["prefix_ids"][0]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines), encoding="utf-8")
    words = "--shape 2,1,8,1e6 --allocator blocks --block-size 4 --one-at-a-time --json"
    result = CliRunner().invoke(
        app, ["replay", str(trace), *words.split(), "--kv-memory", "unbounded"]
    )
    assert result.exit_code == 0, result.stderr
    hits = json.loads(result.stdout)["allocators"]["blocks"]["prefix_hit_tokens"]
    assert hits == stack.groups[0].server.ledger().prefix_hit_tokens > 40


async def test_steps_are_told_once_with_their_sizes(
    stack: Any, address: str, spec: Spec, collected: Collected
) -> None:
    await stack.add_group()
    after = dict((await ask(address, {})).next)
    await collected(await stack.dispatcher.submit("witness", spec("a", (1, 2, 3, 4, 5), 4)))
    answer = await ask(address, after)
    # The prompt, and each token of the answer but the last.
    assert [step.tokens for step in answer.steps] == [5, 1, 1, 1]
    assert [step.rows for step in answer.steps] == [1] * 4
    assert [step.context_tokens for step in answer.steps] == [5, 6, 7, 8]
    assert [step.attended_pairs for step in answer.steps] == [12.5, 5.5, 6.5, 7.5]
    assert min(step.seconds for step in answer.steps) > 0
    assert not (await ask(address, dict(answer.next))).steps


async def test_another_salt_names_everything_differently(
    stack: Any, address: str, spec: Spec, collected: Collected
) -> None:
    await stack.add_group()
    after = dict((await ask(address, {})).next)
    names = []
    for number in range(2):
        stream = await stack.dispatcher.submit("witness", spec(f"r{number}", (1, 2, 3, 4, 5), 1))
        await collected(stream)
        answer = await ask(address, after, bytes([number]) * 16)
        names.append(list(answer.arrivals[0].prefix_ids))
        after = dict(answer.next)
    assert names[0] != names[1]
    with pytest.raises(ServerError, match="16 by chance"):
        await ask(address, {}, b"short")


async def test_who_leaves_is_recorded_with_what_it_got(
    stack: Any, address: str, spec: Spec
) -> None:
    await stack.add_group()
    after = dict((await ask(address, {})).next)
    stream = await stack.dispatcher.submit("witness", spec("gone", (1, 2, 3), 100))
    got = 0
    async for update in stream:
        got += len(update.token_ids)
        if got >= 3:
            break
    await stream.abort()
    await stack.until(stack.idle)
    (arrival,) = (await ask(address, after)).arrivals
    assert 3 <= arrival.output_tokens < 100


async def test_the_command_writes_a_file_once(stack: Any, address: str, tmp_path: Path) -> None:
    await stack.add_group()
    output = tmp_path / "trace.jsonl"
    words = ["record", str(output), "--seconds", "0.1", "--address", address]
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert result.exit_code == 0, result.stderr
    assert "recorded 0 requests" in result.stderr
    assert output.read_text(encoding="utf-8") == ""
    again = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert again.exit_code == 2
    assert "there already" in again.stderr


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ended(name: str, choice: int = 0) -> RequestUpdate:
    return RequestUpdate(name, (1, 2), FinishReason.LENGTH, choice=choice)


def test_nothing_is_kept_for_nobody(spec: Spec) -> None:
    clock = Time()
    log = ArrivalLog(4, clock, lambda: 100.0 + clock.now)
    log.submitted(spec("a", (1,) * 9, 2))
    log.stepped([ended("a")])
    first = log.take(0)
    assert (first.records, first.next_number, first.missed) == ((), 1, 0)
    clock.now = 5.0
    log.submitted(replace(spec("b", (1,) * 9, 2), num_choices=2))
    log.stepped([ended("b", 1)])
    log.submitted(replace(spec("c", (1,) * 9, 2), use_prefix_cache=False))
    log.stepped([ended("b", 0), ended("c")])
    batch = log.take(first.next_number)
    assert [record.arrived_at for record in batch.records] == [105.0] * 3
    assert [len(record.block_keys) for record in batch.records] == [2, 2, 0]
    # The same question again gets the same answer: it may have been lost on its way.
    assert log.take(first.next_number) == batch
    # A minute after the last question nobody listens any more.
    clock.now = 66.0
    log.submitted(spec("d", (1,) * 9, 2))
    log.stepped([ended("d")])
    assert log.take(batch.next_number).records == ()


def test_who_asks_too_rarely_is_told_what_was_missed(spec: Spec) -> None:
    log = ArrivalLog(4, Time())
    number = log.take(0).next_number
    for index in range(5000):
        log.submitted(spec(str(index), (1,), 2))
        log.stepped([ended(str(index))])
    batch = log.take(number)
    assert batch.missed == 5000 - 4096
    assert len(batch.records) == 512
    assert batch.next_number == number + batch.missed + 512
