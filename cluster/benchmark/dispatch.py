"""How many requests a second the central scheduler binds, with many groups that push their books.

It runs in a process of its own, as in a cluster; groups and the ingress that asks are this process,
over real wires. No group computes anything. Units: requests, seconds.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe

import psutil

from blockyard.cluster.binder import CentralBinder
from blockyard.cluster.central import CentralScheduler
from blockyard.cluster.central_link import PUSH_SECONDS
from blockyard.cluster.messages import Bind, Drain, GroupIdentity, Groups, Join, LedgerPush
from blockyard.cluster.wire import Codec, Endpoint, connect
from blockyard.scheduler.block_keys import NO_EXTRAS, block_keys
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.workers.description import ModelDescription

__all__ = ["DispatchSpeed", "measure_dispatch"]

_START_SECONDS = 60.0
_BLOCK_SIZE = 16
_PROMPT_BLOCKS = 16
_BLOCKS_HELD = 2000
"""Blocks that can be found in each group."""
_PROMPTS = 512
_MODEL = ModelDescription("simulated", "/nowhere", "Witness", 4096, 1000, ())


@dataclass(frozen=True, slots=True)
class DispatchSpeed:
    """Requests bound in a second, and in a second of the scheduler's own computing time."""

    per_second: float
    per_cpu_second: float
    groups: int


def measure_dispatch(
    groups: int = 64, seconds: float = 5.0, concurrency: int = 128
) -> DispatchSpeed:
    """Start a central scheduler, load it, end it; so many requests wait for an answer at a time."""
    with _central() as (endpoint, process):
        load = _load(endpoint, process, groups, seconds, concurrency)
        bound, took, computed = asyncio.run(load)
    return DispatchSpeed(bound / took, bound / computed, groups)


@contextmanager
def _central() -> Iterator[tuple[Endpoint, psutil.Process]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        if not ours.poll(_START_SECONDS):
            raise TimeoutError("the central scheduler did not start")
        yield ours.recv(), psutil.Process(process.pid)
    finally:
        ours.close()  # it ends when nobody is there any more
        process.join(10.0)
        if process.is_alive():
            process.kill()


def _serve(pipe: Pipe) -> None:
    async def run() -> None:
        central = CentralScheduler()
        await central.start("127.0.0.1")
        pipe.send(central.endpoint)
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), gone.set)
        await gone.wait()
        await central.close()

    asyncio.run(run())


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _load(
    endpoint: Endpoint, process: psutil.Process, num_groups: int, seconds: float, concurrency: int
) -> tuple[int, float, float]:
    """Requests bound, the seconds that took, and the scheduler's own."""
    joined = asyncio.Event()

    def take(told: Groups) -> None:
        if len(told.groups) == num_groups:
            joined.set()

    async def locate() -> Endpoint:
        return endpoint

    binder = CentralBinder(locate, take)
    tasks = [asyncio.create_task(binder.run())]
    tasks += [asyncio.create_task(_push(endpoint, number)) for number in range(num_groups)]
    bound = 0

    async def ask(number: int, prompts: Sequence[tuple[bytes, ...]]) -> None:
        nonlocal bound
        while True:
            number += concurrency
            keys = prompts[number % len(prompts)]
            tokens = len(keys) * _BLOCK_SIZE + 5
            binding = await binder.bind(Bind(0, _MODEL.name, tokens, keys, _BLOCK_SIZE))
            assert binding.group_id is not None, "the central scheduler bound nothing"
            bound += 1

    try:
        async with asyncio.timeout(_START_SECONDS):
            await joined.wait()
        prompts = [_prompt(number)[:_PROMPT_BLOCKS] for number in range(_PROMPTS)]
        tasks += [asyncio.create_task(ask(number, prompts)) for number in range(concurrency)]
        await asyncio.sleep(1.0)  # until it runs evenly
        bound, began, computed = 0, time.perf_counter(), _cpu_seconds(process)
        await asyncio.sleep(seconds)
        found = bound, time.perf_counter() - began, _cpu_seconds(process) - computed
        for task in tasks:
            if task.done():
                task.result()
        return found
    finally:
        process.kill()  # or it would be told of each of us that goes, and tell the others
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _push(endpoint: Endpoint, number: int) -> None:
    """One group: joins, and pushes books that have changed as often as an engine may."""
    codec: Codec[Drain] = Codec(Drain)
    connection = await connect(endpoint, codec)
    identity = GroupIdentity(
        f"group-{number:03}", _MODEL, "cpu", "int64", _BLOCK_SIZE, "127.0.0.1", 1, b""
    )
    held = [key for prompt in range(number, _PROMPTS, 7) for key in _prompt(prompt)]
    connection.post(Join(identity, _ledger(0), False, tuple(held[:_BLOCKS_HELD])))
    fresh = [_prompt(_PROMPTS + number + 64 * step)[:2] for step in range(50)]
    step = 0
    try:
        while True:
            step += 1
            connection.post(LedgerPush(_ledger(step), False, (), fresh[step % len(fresh)]))
            await connection.drain()
            await asyncio.sleep(PUSH_SECONDS)
    finally:
        await connection.close()


def _prompt(number: int) -> tuple[bytes, ...]:
    """Block keys of a prompt; those of one system prompt share the first half of them."""
    half = _PROMPT_BLOCKS * _BLOCK_SIZE // 2
    tokens = [number % 16] * half + [number % 1000, number // 1000] * (half // 2)
    return block_keys(tuple(tokens), _BLOCK_SIZE, NO_EXTRAS)


def _ledger(step: int) -> GroupLedger:
    active = 100 + step % 50
    return GroupLedger(
        blocks=BlockCounts(total=4000, free=3000 - active, cached=1000, active=active, fenced=0),
        slots=SlotCounts(filled=active * _BLOCK_SIZE, promised=0, empty_tail=0),
        requests=RequestCounts(running=10, waiting=0, parked=0),
        block_size=_BLOCK_SIZE,
        step=step,
        preemptions=0,
        stalled_steps=0,
    )
