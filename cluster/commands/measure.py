"""`blockyard measure`: how well another server uses its KV memory, from its metrics or by hand."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.commands.errors import EXIT_INTERRUPTED, EXIT_MISUSED, fail

if TYPE_CHECKING:
    from blockyard.cluster.capacity.metrics_source import MetricsSource
    from blockyard.cluster.capacity.server_metrics import ServerSample

__all__ = ["measure"]


def measure(
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Metrics of a vLLM, SGLang or TGI server: its address, or a file with one sample.",
            show_default=False,
        ),
    ] = None,
    capacity_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens that the KV memory can hold.", show_default="from --metrics"),
    ] = None,
    running: Annotated[
        float | None,
        typer.Option(help="Requests running at once.", show_default="from --metrics"),
    ] = None,
    mean_length: Annotated[
        float | None,
        typer.Option(
            help="Tokens a running request holds, on average.", show_default="from --metrics"
        ),
    ] = None,
    max_seq_len: Annotated[
        int | None,
        typer.Option(help="Longest request the server takes.", show_default="from --metrics"),
    ] = None,
    p99_length: Annotated[
        float | None,
        typer.Option(
            help="Only one request in a hundred is longer.", show_default="from --metrics"
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to sample an address.", min=0.0)] = 30.0,
    interval: Annotated[float, typer.Option(help="Seconds between two samples.", min=0.01)] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a server's real use of its KV memory, beside a contiguous server's."""
    from blockyard.cluster.capacity.measure_report import GivenFigures, answer_measurement
    from blockyard.cluster.capacity.metrics_source import MetricsSource, SourceUnreachable
    from blockyard.cluster.capacity.server_metrics import MetricsUnreadable

    given = GivenFigures(capacity_tokens, running, mean_length, max_seq_len, p99_length)
    try:
        if metrics is None:
            answer = answer_measurement("a server told of by hand", given)
        else:
            source = MetricsSource(metrics)
            samples = _sample(source, seconds, interval)
            server = samples[-1].server
            answer = answer_measurement(
                f"{server} ({metrics})", given, samples, source.limits(server)
            )
    except (SourceUnreachable, MetricsUnreadable) as error:
        raise fail(str(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except ValueError as error:
        raise fail(str(error), EXIT_MISUSED) from None
    if as_json:
        typer.echo(json.dumps(answer))
        return
    from rich.console import Console

    from blockyard.cluster.capacity.plan_text import show_measurement

    show_measurement(answer, Console())


def _sample(source: "MetricsSource", seconds: float, interval: float) -> "list[ServerSample]":
    """Sample with a progress bar on standard error, where somebody sees it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from blockyard.cluster.capacity.metrics_source import collect_samples

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("sampling (Ctrl-C ends it early)", total=1.0)
        return collect_samples(
            source, seconds, interval, lambda share: progress.update(task, completed=share)
        )
