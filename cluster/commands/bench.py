"""`blockyard bench`: how fast parts of Blockyard are on this machine."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.commands.errors import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from blockyard.cluster.benchmark.oversubscribed import OversubscriptionBench
    from blockyard.cluster.benchmark.pipeline import PipelineBench
    from blockyard.cluster.benchmark.scheduler import SchedulerBench

__all__ = ["bench_app", "show_oversubscription", "show_pipeline", "show_scheduler"]

bench_app = typer.Typer(
    help="Measure parts of Blockyard on this machine.",
    no_args_is_help=True,
)


@bench_app.callback()
def bench() -> None:
    """Measure parts of Blockyard on this machine."""


@bench_app.command("scheduler")
def scheduler(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    oversubscribed: Annotated[
        bool,
        typer.Option(
            "--oversubscribed",
            help="In place of speed: what twice the demand costs, on a simulated H200.",
        ),
    ] = False,
    blocks: Annotated[
        int | None,
        typer.Option(
            help="With --oversubscribed: blocks in the pool.",
            show_default="what an H200 has room for",
            min=256,
        ),
    ] = None,
) -> None:
    """Measure the scheduler beside workers that compute nothing; no GPU and no model needed."""

    def progress(what: str) -> None:
        typer.echo(f"measuring {what}", err=True)

    try:
        if oversubscribed:
            from blockyard.cluster.benchmark.oversubscribed import measure_oversubscription

            over = measure_oversubscription(blocks, progress)
            typer.echo(json.dumps(asdict(over))) if as_json else show_oversubscription(over)
        else:
            from blockyard.cluster.benchmark.scheduler import measure_scheduler
            from blockyard.cluster.garbage import collect_rarely

            collect_rarely()  # as the process of a group does
            speed = measure_scheduler(progress=progress)
            typer.echo(json.dumps(asdict(speed))) if as_json else show_scheduler(speed)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


@bench_app.command("ledger")
def ledger(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what the live books and the contiguous shadow cost a step; no model needed."""
    from blockyard.cluster.benchmark.ledger import measure_ledger
    from blockyard.cluster.garbage import collect_rarely

    try:
        collect_rarely()  # as the process of a group does
        found = measure_ledger()
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    for arrivals, times in found.step_ms.items():
        typer.echo(
            f"books and shadow, {found.running} running, {arrivals} come and go in a step: "
            f"{times['mean']:.3f} ms (99th percentile {times['p99']:.3f}), "
            f"and {found.meanwhile_ms[arrivals]['mean']:.3f} ms while workers compute"
        )


@bench_app.command("ingress")
def ingress(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    streams: Annotated[int, typer.Option(help="Requests at once.", min=1, max=1024)] = 64,
    seconds: Annotated[float, typer.Option(help="How long each load lasts.", min=1.0)] = 8.0,
) -> None:
    """Measure one ingress before an engine without a model: its tokens a second, and its delay."""
    from blockyard.cluster.benchmark.ingress import measure_ingress

    try:
        found = measure_ingress(streams, seconds, lambda what: typer.echo(what, err=True))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    typer.echo(f"tokens a second:               {found.tokens_per_s:,.0f}")
    typer.echo(f"  of the ingress's own time:   {found.tokens_per_cpu_s:,.0f}")
    typer.echo(f"added to a first token:        {found.added_ttft_ms_p50:.1f} ms (median)")
    typer.echo(f"                               {found.added_ttft_ms_p99:.1f} ms (99th percentile)")


@bench_app.command("pipeline")
def pipeline(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    running: Annotated[int, typer.Option(help="Requests that decode at once.", min=1)] = 64,
    rounds: Annotated[int, typer.Option(help="Turns of each depth.", min=1)] = 3,
    step_ms: Annotated[
        float, typer.Option(help="What a step takes at least, as a model's would.", min=0.0)
    ] = 8.0,
) -> None:
    """Measure what planning ahead gains and costs, with a witness in a process of its own."""

    def progress(what: str) -> None:
        typer.echo(f"measuring {what}", err=True)

    try:
        from blockyard.cluster.benchmark.pipeline import measure_pipeline

        bench = measure_pipeline(running, rounds=rounds, step_ms=step_ms, progress=progress)
        typer.echo(json.dumps(asdict(bench))) if as_json else show_pipeline(bench)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def show_pipeline(bench: "PipelineBench") -> None:
    """Print what planning ahead gains and costs, in words."""
    for depth, speed in bench.tokens_per_second.items():
        typer.echo(
            f"{depth} in flight, {bench.running:,} running, steps of {bench.step_ms:g} ms or more: "
            f"{speed:,.0f} tokens/s, "
            f"first token of a newcomer after {bench.first_token_ms[depth]:.2f} ms"
        )
    typer.echo(f"tokens a second with 2 in flight to those with 1: {bench.gain:.3f}")


def show_scheduler(speed: "SchedulerBench") -> None:
    """Print how fast the scheduler is, in words."""
    from blockyard.cluster.benchmark.scheduler import ASSUMED_STEP_SECONDS

    for running, times in speed.plan_commit_ms.items():
        typer.echo(
            f"plan and commit, {int(running):>5,} running: {times['mean']:.3f} ms "
            f"(99th percentile {times['p99']:.3f})"
        )
    typer.echo(
        f"with 64 arrivals and endings a second: {speed.churn_ratio:.2f} times that at 256, were a "
        f"step {ASSUMED_STEP_SECONDS * 1e3:.0f} ms"
    )
    typer.echo(f"100,000 blocks against 1,000:          {speed.pool_size_ratio:.2f} times")
    typer.echo(f"a prompt of 32,768 cached tokens:      {speed.prefix_match_32k_ms:.2f} ms")


def show_oversubscription(over: "OversubscriptionBench") -> None:
    """Print what twice the demand costs, in words."""
    kinds = ", ".join(f"{count:,} by {kind}" for kind, count in over.preemptions.items())
    typer.echo(f"goodput under twice the demand: {over.goodput_ratio:.1%} of the same pool's own")
    typer.echo(f"computed again:                 {over.recomputed_ratio:.2%} of useful tokens")
    typer.echo(f"steps without progress:         {over.zero_progress_steps:,}")
    typer.echo(f"preemptions:                    {kinds}")
