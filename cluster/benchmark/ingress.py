"""How fast one ingress is: tokens a second over many streams, and what it adds to a first token.

The ingress runs in a process of its own, with a witness for an engine in the same process, so what
is measured is the whole way of a token from a scheduler to a client's socket. The client is this
process. Units: tokens, seconds, milliseconds where the name says so.
"""

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import uvloop

from blockyard.cluster.client import GenerationClient, Settings, build_request
from blockyard.protos import generation_pb2 as pb

__all__ = ["IngressBench", "measure_ingress"]

_PROMPT_TOKENS = 32
_ANSWER_TOKENS = 256
_SHORT_ANSWER_TOKENS = 32
"""Where first tokens are what counts: there are more of them."""
_START_SECONDS = 60.0
_WARM_UP_SECONDS = 2.0
_READING_STEP_SECONDS = 0.04
"""A step gives each stream one token."""


@dataclass(frozen=True, slots=True)
class IngressBench:
    """What was measured.

    Attributes:
        tokens_per_s: delivered to the client, all streams together.
        chunks_per_s: messages that they came in.
        tokens_per_cpu_s: tokens for a second of the ingress's own computing time: what it could
            deliver with a core for itself, whatever else the machine does.
        added_ttft_ms_p50, added_ttft_ms_p99: from a request leaving the client to its first token
            there, less the time that the engine itself says it took; while as many streams run at
            a pace that people read at, 25 tokens a second each.
        streams: requests at once.
        seconds: for how long, each of the two.
    """

    tokens_per_s: float
    chunks_per_s: float
    tokens_per_cpu_s: float
    added_ttft_ms_p50: float
    added_ttft_ms_p99: float
    streams: int
    seconds: float


@dataclass(slots=True)
class _Counts:
    """What the client has seen."""

    tokens: int
    chunks: int
    added: list[float]


def measure_ingress(
    streams: int = 64, seconds: float = 8.0, progress: Callable[[str], None] = lambda what: None
) -> IngressBench:
    """Start an ingress, load it, end it.

    Args:
        streams: requests at once.
        seconds: how long the load lasts.
        progress: told of what comes next.
    """
    progress(f"{streams} streams, as fast as they come")
    with _ingress_process(0.0) as (address, process):
        fast, took, computed = uvloop.run(_load(address, process, streams, seconds, _ANSWER_TOKENS))
    progress(f"{streams} streams at a reader's pace")
    with _ingress_process(_READING_STEP_SECONDS) as (address, process):
        paced, _, _ = uvloop.run(_load(address, process, streams, seconds, _SHORT_ANSWER_TOKENS))
    added = sorted(paced.added)
    return IngressBench(
        tokens_per_s=fast.tokens / took,
        chunks_per_s=fast.chunks / took,
        tokens_per_cpu_s=fast.tokens / computed,
        added_ttft_ms_p50=statistics.median(added),
        added_ttft_ms_p99=added[int(0.99 * (len(added) - 1))],
        streams=streams,
        seconds=took,
    )


@contextmanager
def _ingress_process(step_seconds: float) -> Iterator[tuple[str, psutil.Process]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, step_seconds), daemon=True)
    process.start()
    try:
        if not ours.poll(_START_SECONDS):
            raise TimeoutError("the ingress did not start")
        yield f"127.0.0.1:{ours.recv()}", psutil.Process(process.pid)
    finally:
        ours.close()  # it ends when nobody is there any more
        process.join(10.0)
        if process.is_alive():
            process.kill()


async def _load(
    address: str, process: psutil.Process, streams: int, seconds: float, answer_tokens: int
) -> tuple[_Counts, float, float]:
    """What came, in how much time, with how much of the ingress's computing time."""
    counts = _Counts(0, 0, [])
    async with GenerationClient(address) as client:
        # The first ones have different lengths, so that starts spread.
        first_tokens = [1 + number * answer_tokens // streams for number in range(streams)]
        asking = [
            asyncio.create_task(_ask_again(client, first, answer_tokens, counts))
            for first in first_tokens
        ]
        await asyncio.sleep(_WARM_UP_SECONDS)
        counts.tokens, counts.chunks, counts.added[:] = 0, 0, []
        began, computed = time.monotonic(), _cpu_seconds(process)
        await asyncio.sleep(seconds)
        took, computed = time.monotonic() - began, _cpu_seconds(process) - computed
        found = replace(counts, added=list(counts.added))
        for task in asking:
            task.cancel()
        for outcome in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
    return found, took, computed


async def _ask_again(
    client: GenerationClient, first_tokens: int, answer_tokens: int, counts: _Counts
) -> None:
    """One stream after the other."""
    await _one(client, first_tokens, counts)
    while True:
        await _one(client, answer_tokens, counts)


async def _one(client: GenerationClient, max_tokens: int, counts: _Counts) -> None:
    request = build_request(
        token_ids=[counts.chunks % 251, *range(1, _PROMPT_TOKENS)],
        settings=Settings(max_tokens=max_tokens, ignore_eos=True),
    )
    began = time.perf_counter()
    first: float | None = None
    async for chunk in client.stream(request):
        if first is None:
            first = time.perf_counter() - began
        counts.tokens += len(chunk.token_ids)
        counts.chunks += 1
        if chunk.finish_reason:
            counts.added.append(1e3 * (first - _engine_seconds(chunk.timings)))


def _cpu_seconds(process: psutil.Process) -> float:
    """Computing time of a process so far, all its threads together."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _engine_seconds(timings: pb.Timings) -> float:
    """Until the first token, by the engine's own books."""
    return timings.queue_seconds + timings.prefill_seconds


def _serve(parent: Connection, step_seconds: float) -> None:
    """The ingress's process: serve until the other end of `parent` is gone."""
    import uvloop

    uvloop.run(_serve_until(parent, step_seconds))


async def _serve_until(parent: Connection, step_seconds: float) -> None:
    # Imported here: the client's process needs none of it.
    from blockyard.cluster.garbage import collect_rarely
    from blockyard.cluster.grpc_front import GrpcFront
    from blockyard.cluster.local_dispatcher import LocalDispatcher
    from blockyard.cluster.tokenizer import load_tokenizer
    from blockyard.scheduler.config import SchedulerConfig
    from blockyard.workers.config import WorkerConfig
    from blockyard.workers.description import describe_model
    from blockyard.workers.paced_witness import PacedWitness
    from blockyard.workers.witness_files import WITNESS_CONTEXT_TOKENS, write_witness_files

    with tempfile.TemporaryDirectory() as folder:
        write_witness_files(Path(folder))
        model = describe_model(folder, "witness")
        config = WorkerConfig(folder, WITNESS_CONTEXT_TOKENS, num_blocks=8192)
        worker = PacedWitness(config, model.vocab_size, step_seconds)
        limits = SchedulerConfig(WITNESS_CONTEXT_TOKENS)
        dispatcher = await LocalDispatcher.start(model, worker, limits)
        front = GrpcFront(dispatcher, {model.name: load_tokenizer(folder)})
        parent.send(await front.start("127.0.0.1:0"))
        collect_rarely()
        await asyncio.to_thread(_until_gone, parent)
        await front.stop(None)
        await dispatcher.close()


def _until_gone(parent: Connection) -> None:
    with suppress(EOFError):
        parent.recv()
