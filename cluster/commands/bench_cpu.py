"""`blockyard bench linear` and `blockyard bench e2e`: how fast a model is on this CPU."""

import asyncio
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockyard.cluster.commands.errors import EXIT_INTERRUPTED, EXIT_MISUSED, fail
from blockyard.cluster.commands.start import Model

if TYPE_CHECKING:
    from blockyard.cluster.benchmark.end_to_end import EndToEndBench, Pass
    from blockyard.cluster.benchmark.linear import LinearBench
    from blockyard.cluster.benchmark.workloads import Workload
    from blockyard.workers.description import ModelDescription

__all__ = ["bench_end_to_end", "bench_linear", "show_end_to_end", "show_linear"]

_LEAST_RUNNING = 32

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Threads = Annotated[
    int | None,
    typer.Option(help="CPU threads of a step.", show_default="all cores", min=1),
]


def bench_linear(
    as_json: AsJson = False,
    model: Model = "smollm2-135m",
    threads: Threads = None,
    text: Annotated[
        Path | None,
        typer.Option(
            help="Text for the perplexity of each storage.", show_default="none", dir_okay=False
        ),
    ] = None,
) -> None:
    """Measure linears by number of rows and by storage of weights; on CPUs with native code."""
    from blockyard.cluster.benchmark.linear import measure_linear
    from blockyard.cluster.tokenizer import load_tokenizer
    from blockyard.workers.cpu.compiler import NativeUnavailable

    description = _describe(model)
    tokens = None
    if text is not None:
        if not text.is_file():
            raise fail(f"there is no file {text}", EXIT_MISUSED)
        tokenizer = load_tokenizer(Path(description.directory))
        tokens = tokenizer.encode_prompt(text.read_text(encoding="utf-8"))
    try:
        speed = measure_linear(
            Path(description.directory),
            threads or len(os.sched_getaffinity(0)),
            tokens,
            lambda what: typer.echo(f"measuring {what}", err=True),
        )
    except NativeUnavailable as error:
        raise fail(str(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(json.dumps(asdict(speed))) if as_json else show_linear(speed)


def bench_end_to_end(
    as_json: AsJson = False,
    weights: Annotated[
        str, typer.Option(help="How weights are kept: fp32, bf16, int8 or int4.")
    ] = "fp32",
    workload: Annotated[
        str,
        typer.Option(
            help="w1_c16, w1_c32: chat, 16 or 32 in flight. w2: one stream. w3: a shared prefix. "
            "w4: one prompt of 2,048 tokens."
        ),
    ] = "w1_c16",
    through: Annotated[
        str, typer.Option(help="process, or grpc: through a server with Ray and Serve.")
    ] = "process",
    passes: Annotated[int, typer.Option(help="How often it is measured.", min=1)] = 1,
    model: Model = "smollm2-135m",
    threads: Threads = None,
    max_step_tokens: Annotated[int, typer.Option(help="Most tokens in one step.", min=64)] = 256,
) -> None:
    """Measure how fast a workload is served on this CPU. Let nothing else run meanwhile."""
    from blockyard.cluster.benchmark.workloads import make_workload

    if through not in ("process", "grpc"):
        raise fail(f"--through is {through!r}; known are process and grpc", EXIT_MISUSED)
    description = _describe(model)
    try:
        chosen = make_workload(workload, description.vocab_size)
    except ValueError as error:
        raise fail(str(error), EXIT_MISUSED) from None
    settings = {"weights": weights, "threads": threads, "max_step_tokens": max_step_tokens}
    try:
        if through == "grpc":
            served = _through_grpc(model, chosen, passes, settings)
        else:
            served = _in_process(description, chosen, passes, settings)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    result = _summary(description, chosen, weights, through, served, threads)
    typer.echo(json.dumps(asdict(result))) if as_json else show_end_to_end(result)


def show_linear(speed: "LinearBench") -> None:
    """Print how fast linears are, in a table."""
    typer.echo(
        f"{speed.model}, all linears of a step, {speed.threads} threads; this machine reads "
        f"{speed.read_gb_per_s:.1f} GB/s and computes, in GFLOP/s, "
        + ", ".join(f"{most:.0f} in {name}" for name, most in speed.compute_gflop_per_s.items())
    )
    typer.echo("\nweights  rows       ms    GB/s  GFLOP/s  times the floor")
    for one in speed.linears:
        typer.echo(
            f"{one.storage:<7} {one.rows:>5} {one.ms:>8.2f} {one.gb_per_s:>7.2f} "
            f"{one.gflop_per_s:>8.1f} {one.floor_ratio:>16.2f}"
        )
    for rows, milliseconds in speed.torch_fp32_ms.items():
        typer.echo(f"torch   {rows:>5} {milliseconds:>8.2f}")
    for storage, value in speed.perplexity.items():
        typer.echo(f"perplexity with {storage}: {value:.4f}")


def show_end_to_end(result: "EndToEndBench") -> None:
    """Print how fast a workload was served, in words."""
    typer.echo(
        f"{result.workload}, weights in {result.weights}, through {result.through}:\n"
        f"  {result.output_tokens_per_s:.1f} output tokens/s, "
        f"{result.floor_ratio:.2f} times the least time\n"
        f"  first token after {result.ttft_ms['p50']:.0f} ms (99th percentile "
        f"{result.ttft_ms['p99']:.0f}), then one each {result.itl_ms['p50']:.0f} ms "
        f"({result.itl_ms['p99']:.0f})\n"
        f"  {result.peak_memory_mib:,.0f} MiB at most"
    )


def _describe(model: str) -> "ModelDescription":
    from blockyard.cluster.commands.progress import TerminalProgress
    from blockyard.workers.catalog import ModelUnavailable, resolve_model
    from blockyard.workers.description import ModelFilesError, describe_model

    try:
        with TerminalProgress() as progress:
            return describe_model(resolve_model(model, None, progress), model)
    except (ModelUnavailable, ModelFilesError) as error:
        raise fail(str(error)) from None


@dataclass(frozen=True, slots=True)
class _Served:
    """A workload's passes, and the bytes of weights and of memory that they took."""

    passes: "list[Pass]"
    weight_bytes: int
    peak_bytes: int


def _in_process(
    description: "ModelDescription", workload: "Workload", passes: int, settings: dict[str, Any]
) -> _Served:
    from blockyard.cluster.benchmark.end_to_end import measure_in_process
    from blockyard.cluster.benchmark.processes import peak_memory_bytes

    measured, weight_bytes = asyncio.run(
        measure_in_process(description, workload, passes, **settings)
    )
    return _Served(measured, weight_bytes, peak_memory_bytes())


def _through_grpc(
    model: str, workload: "Workload", passes: int, settings: dict[str, Any]
) -> _Served:
    from blockyard.cluster.benchmark.processes import peak_memory_bytes
    from blockyard.cluster.benchmark.through_grpc import measure_through_grpc
    from blockyard.cluster.client import BlockingClient
    from blockyard.cluster.commands.start import configure, free_port, running

    port = free_port()
    running_at_once = max(_LEAST_RUNNING, workload.concurrency)
    config = configure(model, None, {"grpc_port": port, "max_running": running_at_once, **settings})
    with running(config, None) as deployment:
        address = f"{config.grpc_host}:{port}"
        vocabulary = config.model.vocab_size
        measured = asyncio.run(measure_through_grpc(address, workload, passes, vocabulary))
        with BlockingClient(address, 60.0) as client:
            ranks = client.ledger().groups[0].ranks
        peak = peak_memory_bytes()
        deployment.drain()
    return _Served(measured, sum(rank.weight_bytes for rank in ranks), peak)


def _summary(
    description: "ModelDescription",
    workload: "Workload",
    weights: str,
    through: str,
    served: _Served,
    threads: int | None,
) -> "EndToEndBench":
    from blockyard.cluster.benchmark.end_to_end import decoder_work, floor_seconds, summarise
    from blockyard.workers.cpu.ceilings import measure_ceilings
    from blockyard.workers.cpu.library import load_library
    from blockyard.workers.cpu.packed import WeightStorage

    pool = load_library().pool(threads or len(os.sched_getaffinity(0)))
    ceilings = measure_ceilings(pool, WeightStorage(weights))
    work = decoder_work(description.directory, served.weight_bytes)
    floor = floor_seconds(workload, work, ceilings)
    peak_mib = served.peak_bytes / 2**20
    return summarise(workload, weights, through, served.passes, peak_mib, floor)
