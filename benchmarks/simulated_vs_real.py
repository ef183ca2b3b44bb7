"""Sends one load through a real `blockyard serve` and through a replay, and compares the two.

The replay's cost model is fitted as `blockyard calibrate --address SERVER --watch SECONDS` fits
it: to the steps that the server runs for this very load, so whatever else the machine does at that
time is in the real run and in the costs alike. The requests are replayed at the times at which
they were really sent. What is compared is then who ran together with whom, in how many steps, in
which blocks. Exit code 1 when throughput or peak blocks are 15 % apart. Units: seconds, tokens,
blocks.

    python benchmarks/simulated_vs_real.py --requests 200
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from blockyard.cluster.capacity.model_shape import find_shape
from blockyard.cluster.capacity.replay_report import ReplayQuestion, answer_replay
from blockyard.cluster.capacity.server_calibration import UNKNOWN_LINK, StepWatch
from blockyard.cluster.capacity.trace_reader import TraceRequest
from blockyard.cluster.capacity.traffic import recorded_traffic
from blockyard.cluster.client import GenerationClient, ServerError, Settings, build_request
from blockyard.scheduler.capacity.kv_budget import KvBudget
from blockyard.scheduler.config import PreemptionPolicy
from blockyard.scheduler.replay import Feed
from blockyard.scheduler.simulated.devices import Device, device_to_json
from blockyard.scheduler.simulated.measured_cost import MeasuredCost, StepSample, fit_cost

__all__ = ["Outcome", "compare"]

_MOST_APART = 0.15
_START_SECONDS = 300.0
_STEP_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load came to. Seconds from the first request to the last token."""

    output_tokens: int
    seconds: float
    peak_blocks: int
    steps: int

    @property
    def tokens_per_second(self) -> float:
        """Throughput of answers."""
        return self.output_tokens / self.seconds


def compare(real: Outcome, simulated: Outcome) -> dict[str, float]:
    """How far the simulated run is from the real one, as shares of the real one."""
    return {
        "throughput": simulated.tokens_per_second / real.tokens_per_second - 1,
        "peak_blocks": simulated.peak_blocks / real.peak_blocks - 1,
    }


async def run_load(
    client: GenerationClient, requests: int, rate: float, rng: random.Random, watch: StepWatch
) -> tuple[list[TraceRequest], Outcome]:
    """Send requests at random times, and watch books and steps until all answers are there."""
    began = time.monotonic()
    sent: list[TraceRequest] = []
    peak = 0

    async def ask(prompt_tokens: int, output_tokens: int) -> None:
        tokens = [rng.randrange(100, 40_000) for _ in range(prompt_tokens)]
        settings = Settings(max_tokens=output_tokens, ignore_eos=True, temperature=1.0)
        request = build_request(token_ids=tokens, settings=settings)
        sent.append(TraceRequest(time.monotonic() - began, prompt_tokens, output_tokens))
        async for _ in client.stream(request):
            pass

    async def watch_books() -> None:
        nonlocal peak
        while True:
            books = await client.ledger()
            peak = max(peak, *(group.blocks.active for group in books.groups), 0)
            await asyncio.sleep(0.05)

    async def watch_steps() -> None:
        while True:
            await watch.collect()
            await asyncio.sleep(1.0)

    watchers = [asyncio.create_task(watch_books()), asyncio.create_task(watch_steps())]
    tasks = []
    for _ in range(requests):
        tasks.append(asyncio.create_task(ask(rng.randrange(16, 160), rng.randrange(8, 48))))
        await asyncio.sleep(rng.expovariate(rate))
    await asyncio.gather(*tasks)
    seconds = time.monotonic() - began
    for watcher in watchers:
        watcher.cancel()
    await asyncio.gather(*watchers, return_exceptions=True)
    await watch.collect()
    tokens = sum(entry.output_tokens for entry in sent)
    return sent, Outcome(tokens, seconds, peak, len(watch.samples))


def replay(
    sent: list[TraceRequest], device: Device, kv_dtype: str, arguments: argparse.Namespace
) -> Outcome:
    """The same requests on a simulated server with the same limits."""
    speed = device.speed
    if not isinstance(speed, MeasuredCost):
        raise ValueError("the device was not measured")
    question = ReplayQuestion(
        traffic=recorded_traffic(sent),
        budget=KvBudget(
            shape=find_shape(arguments.model).shape,
            limit=2048,
            # The server's blocks are counted, so the memory given is what holds exactly as many.
            kv_memory_bytes=speed.block_bytes * arguments.blocks,
            gpu_memory_bytes=None,
            kv_dtype=kv_dtype,
        ),
        device=device,
        num_groups=1,
        allocators=("blocks",),
        feed=Feed.RECORDED,
        speed=1.0,
        max_running=arguments.max_running,
        max_step_tokens=_STEP_TOKENS,
        preemption=PreemptionPolicy.AUTO,
        host_bytes=0,
    )
    report = answer_replay(question).report
    figures = report["allocators"]["blocks"]
    peak = figures["peak_held_slots"] // report["setup"]["block_size"]
    tokens = sum(entry.output_tokens for entry in sent)
    return Outcome(tokens, figures["simulated_s"], peak, figures["steps"])


def kv_dtype_of(model: str, block_bytes: int, block_size: int) -> str:
    """The dtype of keys and values with which a block of this model has so many bytes."""
    shape = find_shape(model).shape
    for dtype in ("fp32", "fp16", "int8"):
        if shape.kv_bytes_per_token(dtype) * block_size == block_bytes:
            return dtype
    raise SystemExit(f"blocks of {block_bytes} B are of no dtype that a replay knows")


async def _until_up(address: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            async with GenerationClient(address, 5.0) as client:
                if (await client.ledger()).groups:
                    return
        except ServerError:
            await asyncio.sleep(1.0)
    raise SystemExit("the server did not come up; start `blockyard serve` by hand to see why")


async def _measure(
    address: str, arguments: argparse.Namespace
) -> tuple[list[StepSample], list[TraceRequest], Outcome, Any]:
    rng = random.Random(arguments.seed)
    async with GenerationClient(address) as client:
        # The first steps pay for what is made once.
        await run_load(client, arguments.max_running, arguments.rate, rng, StepWatch(client))
        watch = StepWatch(client)
        await watch.collect()
        watch.samples.clear()
        sent, outcome = await run_load(client, arguments.requests, arguments.rate, rng, watch)
        group = (await client.ledger()).groups[0]
    return watch.samples, sent, outcome, group


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _main(arguments: argparse.Namespace) -> int:
    port = _free_port()
    words = [
        *(sys.executable, "-m", "blockyard", "serve", "--model", arguments.model),
        *("--device", "cpu", "--port", str(port), "--blocks", str(arguments.blocks)),
        *("--max-running", str(arguments.max_running), "--max-step-tokens", str(_STEP_TOKENS)),
        *(("--threads", str(arguments.threads)) if arguments.threads else ()),
    ]
    # Ray lets workers give way to everything else on the machine; a calm measurement does not.
    server = subprocess.Popen(words, env={**os.environ, "RAY_worker_niceness": "0"})
    try:
        address = f"127.0.0.1:{port}"
        await _until_up(address, server)
        samples, sent, real, group = await _measure(address, arguments)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    block_bytes, block_size = group.sum.block_bytes, group.block_size
    kv_dtype = kv_dtype_of(arguments.model, block_bytes, block_size)
    device = Device("this machine", 2**40, fit_cost(samples, block_bytes, UNKNOWN_LINK))
    if arguments.device_file:
        text = json.dumps(device_to_json(device), indent=2)
        arguments.device_file.write_text(text + "\n", encoding="utf-8")
    simulated = replay(sent, device, kv_dtype, arguments)
    apart = compare(real, simulated)
    report = {
        "real": {**asdict(real), "tokens_per_second": real.tokens_per_second},
        "simulated": {**asdict(simulated), "tokens_per_second": simulated.tokens_per_second},
        "real_steps": {
            "seconds": sum(sample.seconds for sample in samples),
            "slowest_against_median": max(sample.seconds for sample in samples)
            / median(sample.seconds for sample in samples),
        },
        "dtype": group.dtype,
        "load_average": os.getloadavg(),
        "apart": apart,
    }
    print(json.dumps(report, indent=2))
    return int(max(map(abs, apart.values())) >= _MOST_APART)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second")
    parser.add_argument("--blocks", type=int, default=512, help="blocks in the pool")
    parser.add_argument("--max-running", type=int, default=32)
    parser.add_argument("--threads", type=int, help="CPU threads of a step; else the server's own")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device-file", type=Path, help="write the cost model there, for replays")
    raise SystemExit(asyncio.run(_main(parser.parse_args())))
