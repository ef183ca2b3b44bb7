"""Sends one load through a real `blockyard serve` and through a replay, and compares the two.

Calibrates this machine unless given a file of `blockyard calibrate`, starts a server of its own,
sends requests at random times and watches its books. The replay gets the times at which they were
really sent. Let nothing else run meanwhile: both must see the same machine. Units: seconds,
tokens, blocks.

    python benchmarks/simulated_vs_real.py --requests 200
"""

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from blockyard.cluster.client import GenerationClient, ServerError, Settings, build_request

__all__ = ["Outcome", "Sent", "compare"]

_MOST_APART = 0.15
_START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as it was sent; `at` counts from the first one."""

    at: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load came to. Throughput is of answers, from the first request to the last token."""

    tokens_per_second: float
    peak_blocks: int


def compare(real: Outcome, simulated: Outcome) -> dict[str, float]:
    """How far the simulated run is from the real one, as shares of the real one."""
    return {
        "throughput": simulated.tokens_per_second / real.tokens_per_second - 1,
        "peak_blocks": simulated.peak_blocks / real.peak_blocks - 1,
    }


async def run_real(address: str, arguments: argparse.Namespace) -> tuple[list[Sent], Outcome]:
    """Send the load and watch the books until all answers are there."""
    rng = random.Random(arguments.seed)
    began = time.monotonic()
    sent: list[Sent] = []
    peak = 0
    async with GenerationClient(address) as client:

        async def ask(number: int, prompt_tokens: int, output_tokens: int) -> None:
            # Prompts that begin differently, so that nothing is found in the prefix index.
            tokens = [
                1000 + number,
                *(rng.randrange(100, 40_000) for _ in range(prompt_tokens - 1)),
            ]
            settings = Settings(max_tokens=output_tokens, ignore_eos=True, temperature=1.0)
            request = build_request(token_ids=tokens, settings=settings)
            sent.append(Sent(time.monotonic() - began, prompt_tokens, output_tokens))
            async for _ in client.stream(request):
                pass

        async def watch() -> None:
            nonlocal peak
            while True:
                books = await client.ledger()
                peak = max(peak, *(group.blocks.active for group in books.groups), 0)
                await asyncio.sleep(0.05)

        watcher = asyncio.create_task(watch())
        tasks = []
        for number in range(arguments.requests):
            lengths = rng.randrange(16, 160), rng.randrange(8, 48)
            tasks.append(asyncio.create_task(ask(number, *lengths)))
            await asyncio.sleep(rng.expovariate(arguments.rate))
        await asyncio.gather(*tasks)
        seconds = time.monotonic() - began
        watcher.cancel()
    return sent, Outcome(sum(entry.output_tokens for entry in sent) / seconds, peak)


def run_simulated(sent: list[Sent], device: Path, arguments: argparse.Namespace) -> Outcome:
    """Replay what was sent."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "sent.jsonl"
        lines = (
            {
                "arrival_s": entry.at,
                "prompt_tokens": entry.prompt_tokens,
                "output_tokens": entry.output_tokens,
            }
            for entry in sent
        )
        trace.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        # The server's blocks are counted, so the memory given is what holds exactly as many.
        block_bytes = json.loads(device.read_text(encoding="utf-8"))["measured"]["block_bytes"]
        command = [
            *(sys.executable, "-m", "blockyard", "replay", str(trace), "--json"),
            *("--model", arguments.model, "--gpu", str(device), "--allocator", "blocks"),
            *("--weights", "fp32", "--kv", "fp32", "--max-seq-len", "2048"),
            *("--kv-memory", str(block_bytes * arguments.blocks)),
            *("--max-running", str(arguments.max_running), "--max-step-tokens", "512"),
        ]
        report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    blocks = report["allocators"]["blocks"]
    return Outcome(
        blocks["output_tokens_per_s"], blocks["peak_held_slots"] // report["setup"]["block_size"]
    )


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "blockyard", *words]


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


async def _main(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        device = arguments.device_file
        running = ("--max-running", str(arguments.max_running))
        if device is None:
            device = Path(folder) / "device.json"
            words = _command("calibrate", str(device), "--model", arguments.model, *running)
            subprocess.run([*words, "--device", "cpu"], check=True, stdout=sys.stderr)
        words = _command("serve", "--model", arguments.model, "--device", "cpu", *running)
        words += ["--port", str(arguments.port), "--blocks", str(arguments.blocks)]
        server = subprocess.Popen(words)
        try:
            address = f"127.0.0.1:{arguments.port}"
            await _until_up(address, server)
            sent, real = await run_real(address, arguments)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
        simulated = run_simulated(sent, device, arguments)
    apart = compare(real, simulated)
    report = {"real": asdict(real), "simulated": asdict(simulated), "apart": apart}
    print(json.dumps(report, indent=2))
    return int(max(map(abs, apart.values())) >= _MOST_APART)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--blocks", type=int, default=512, help="blocks in the pool")
    parser.add_argument("--max-running", type=int, default=32)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--port", type=int, default=50971)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device-file", type=Path, help="of blockyard calibrate; else: measure")
    raise SystemExit(asyncio.run(_main(parser.parse_args())))
