"""`blockyard replay`: what recorded traffic does to KV memory, in blocks and in one piece."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.commands.capacity_options import (
    Allowance,
    AsJson,
    BlockSize,
    KvDtype,
    Model,
    Shape,
    Tp,
    WeightDtype,
    find_model,
)
from blockyard.cluster.commands.errors import EXIT_INTERRUPTED, EXIT_MISUSED, fail

if TYPE_CHECKING:
    from blockyard.cluster.capacity.replay_report import ReplayQuestion
    from blockyard.cluster.capacity.traffic import Traffic
    from blockyard.scheduler.scaling import ScalingPolicy
    from blockyard.scheduler.simulated.devices import Device

__all__ = ["replay"]


def replay(
    trace: Annotated[
        Path | None, typer.Argument(help="Recorded arrivals.", show_default=False)
    ] = None,
    trace_format: Annotated[
        str | None,
        typer.Option(
            "--format", help="azure, mooncake or jsonl.", show_default="told by the first line"
        ),
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(
            help="In place of a trace: requests=1000000,rate=1000,prompt=512,output=128.",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    shape: Shape = None,
    gpu: Annotated[
        str, typer.Option(help="h200, a100, or a JSON file that describes a device.")
    ] = "h200",
    groups: Annotated[
        str, typer.Option(help="Copies of the model; MIN:MAX lets their number follow the load.")
    ] = "1",
    start_seconds: Annotated[
        float, typer.Option(help="Until a group that is wanted takes requests.", min=0.0)
    ] = 15.0,
    tp: Tp = 1,
    allocator: Annotated[
        str,
        typer.Option(help="blocks, contiguous:max_seq_len, :pow2 or :exact, or all; by commas."),
    ] = "all",
    preemption: Annotated[
        str, typer.Option(help="auto (the cheaper one), swap or recompute.")
    ] = "auto",
    host_memory: Annotated[
        str, typer.Option(help="Of each group for swapped blocks, such as 64GiB.")
    ] = "0",
    speed: Annotated[float, typer.Option(help="Times as fast as recorded.")] = 1.0,
    saturate: Annotated[
        bool,
        typer.Option(
            "--saturate",
            help="Never let the queue run empty, whatever the recorded times, nor cap who runs.",
        ),
    ] = False,
    one_at_a_time: Annotated[
        bool,
        typer.Option("--one-at-a-time", help="Let each request end before the next one comes."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(help="Replay so many requests.", show_default="all", min=1)
    ] = None,
    max_seq_len: Annotated[
        int | None,
        typer.Option(
            help="Longest prompt and answer served; what a contiguous server reserves.",
            show_default="the longest recorded, rounded up to a power of two",
            min=2,
        ),
    ] = None,
    kv_memory: Annotated[
        str | None,
        typer.Option(
            help="For KV in one group, such as 50e9; or unbounded: holds the whole trace.",
            show_default="what weights and allowance leave",
        ),
    ] = None,
    allowance: Allowance = "2GiB",
    weights: WeightDtype = "fp16",
    kv: KvDtype = "fp16",
    block_size: BlockSize = 16,
    max_running: Annotated[int, typer.Option(help="Most requests in one step.", min=1)] = 1024,
    max_step_tokens: Annotated[int, typer.Option(help="Most tokens in one step.", min=2)] = 8192,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write memory over time to this PNG or SVG.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay recorded traffic over simulated time: the real scheduler against contiguous memory.

    Steps take as long as a roofline of the device says. Good for comparing, to some 20 %.
    """
    from blockyard.cluster.capacity.quantities import parse_bytes
    from blockyard.cluster.capacity.replay_report import (
        ReplayQuestion,
        answer_replay,
        default_limit,
    )
    from blockyard.scheduler.capacity.kv_budget import KvBudget
    from blockyard.scheduler.config import PreemptionPolicy
    from blockyard.scheduler.replay import Feed

    try:
        if preemption not in list(PreemptionPolicy):
            raise ValueError(f"--preemption is {preemption!r}; give auto, swap or recompute")
        if not speed > 0:
            raise ValueError(f"--speed is {speed}; it must be above 0")
        if saturate and one_at_a_time:
            raise ValueError("give --saturate or --one-at-a-time, not both")
        found = find_model(model, shape)
        if found is None:
            raise ValueError("which model? give --model or --shape layers,kv_heads,head_dim,params")
        device = _find_device(gpu)
        traffic = _traffic(trace, trace_format, synthetic, limit)
        most_groups, scaling = _groups(groups, start_seconds)
        unbounded = kv_memory == "unbounded"
        question = ReplayQuestion(
            traffic=traffic,
            budget=KvBudget(
                shape=found.shape,
                limit=max_seq_len or default_limit(traffic),
                gpu_memory_bytes=device.memory_bytes,
                kv_memory_bytes=parse_bytes(kv_memory) if kv_memory and not unbounded else None,
                num_ranks=tp,
                num_gpus=tp * most_groups,
                weight_dtype=weights,
                kv_dtype=kv,
                block_size=block_size,
                allowance_bytes=parse_bytes(allowance),
            ),
            device=device,
            num_groups=most_groups,
            allocators=_allocators(allocator),
            feed=Feed.SATURATE if saturate else (Feed.SINGLE if one_at_a_time else Feed.RECORDED),
            speed=speed,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            preemption=PreemptionPolicy(preemption),
            host_bytes=parse_bytes(host_memory),
            unbounded=unbounded,
            scaling=scaling,
            start_seconds=start_seconds,
        )
        if plot is not None:
            from blockyard.cluster.capacity.plot_file import check_plot

            check_plot(plot)
        with _progress(question, silent=as_json) as report:
            answer = answer_replay(question, report)
        if plot is not None:
            from blockyard.cluster.capacity.replay_plot import write_plot

            write_plot(plot, answer)
    except (ValueError, OSError) as error:
        raise fail(str(error), EXIT_MISUSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(answer.report))
        return
    from rich.console import Console

    from blockyard.cluster.capacity.replay_text import show_replay

    show_replay(answer.report, Console())
    if plot is not None:
        typer.echo(f"memory over time: {plot}")


def _traffic(
    trace: Path | None, trace_format: str | None, synthetic: str | None, limit: int | None
) -> "Traffic":
    from blockyard.cluster.capacity.trace_reader import TRACE_FORMATS, read_trace
    from blockyard.cluster.capacity.traffic import recorded_traffic, synthetic_traffic
    from blockyard.scheduler.simulated.synthetic import parse_synthetic

    if (trace is None) == (synthetic is None):
        raise ValueError("give a trace, or --synthetic requests=N,rate=REQUESTS_A_SECOND")
    if trace_format not in (None, *TRACE_FORMATS):
        raise ValueError(f"--format is {trace_format!r}; give {', '.join(TRACE_FORMATS)}")
    if synthetic is not None:
        made_up = parse_synthetic(synthetic)
        count = min(limit or made_up.requests, made_up.requests)
        return synthetic_traffic(replace(made_up, requests=count))
    if trace is None:
        raise AssertionError("there is a trace where nothing is made up")
    requests = read_trace(trace, trace_format)[:limit]
    if not requests:
        raise ValueError(f"{trace} has no requests")
    return recorded_traffic(requests)


def _groups(text: str, start_seconds: float) -> "tuple[int, ScalingPolicy | None]":
    """The most groups, and what decides how many there are when that may change."""
    from blockyard.scheduler.scaling import ScalingPolicy

    least, colon, most = text.partition(":")
    try:
        bounds = int(least), int(most if colon else least)
    except ValueError:
        raise ValueError(f"--groups is {text!r}; give a number, or MIN:MAX") from None
    if colon:
        # Growth is looked ahead for as long as a group takes to come.
        return bounds[1], ScalingPolicy(*bounds, ahead_seconds=max(1.0, start_seconds))
    if bounds[0] < 1:
        raise ValueError(f"--groups is {text}; give 1 or more, or MIN:MAX")
    return bounds[0], None


def _allocators(text: str) -> tuple[str, ...]:
    from blockyard.scheduler.simulated.setup import ALLOCATORS

    if text == "all":
        return ALLOCATORS
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in ALLOCATORS:
            raise ValueError(
                f"--allocator {name!r} is not known; give {', '.join(ALLOCATORS)}, or all"
            )
    return tuple(dict.fromkeys(names))


def _find_device(text: str) -> "Device":
    from blockyard.scheduler.simulated.devices import KNOWN_DEVICES, device_from_json

    if text.lower() in KNOWN_DEVICES:
        return KNOWN_DEVICES[text.lower()]
    path = Path(text).expanduser()
    if not path.is_file():
        raise ValueError(
            f"--gpu {text!r} is neither {', '.join(KNOWN_DEVICES)} nor a file that describes one"
        )
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    return device_from_json(path.name, value)


@contextmanager
def _progress(question: "ReplayQuestion", *, silent: bool) -> Iterator[Callable[[str, int], None]]:
    """A bar for each allocator on standard error, filled as its requests come."""
    from rich import progress
    from rich.console import Console

    total = question.traffic.num_requests
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with progress.Progress(*columns, console=console, transient=True, disable=silent) as bars:
        tasks = {
            name: bars.add_task(name, total=total, start=False) for name in question.allocators
        }

        def report(name: str, done: int) -> None:
            if not done:
                bars.start_task(tasks[name])
            # Each update costs more than the request itself.
            if done % 64 == 0 or done == total:
                bars.update(tasks[name], completed=done)

        yield report
