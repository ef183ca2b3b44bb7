"""`blockyard bench serve`: puts a load on a server that runs, and tells how it fares."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.commands.errors import EXIT_INTERRUPTED, EXIT_MISUSED, fail

if TYPE_CHECKING:
    from blockyard.cluster.benchmark.load_endpoint import Endpoint, Outcome
    from blockyard.cluster.benchmark.load_requests import MadeUpLoad
    from blockyard.cluster.benchmark.load_summary import Objective
    from blockyard.cluster.benchmark.serve_bench import ServeBench, ServeQuestion
    from blockyard.cluster.benchmark.structured_load import StructuredLoad

__all__ = ["bench_serve"]

_STRUCTURED_REQUESTS = 300
_MADE_UP_REQUESTS = 64
_CONCURRENCY = 16


def bench_serve(
    address: Annotated[
        str | None,
        typer.Option(
            help="A Blockyard server's HOST:PORT for gRPC.",
            envvar="BLOCKYARD_ADDRESS",
            show_default="127.0.0.1:50051",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="In place of it, any server with OpenAI's HTTP interface, such as "
            "http://127.0.0.1:8000.",
            show_default=False,
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send texts as chat messages; token ids become words.")
    ] = False,
    model: Annotated[
        str, typer.Option(help="Model to ask.", show_default="the server's first")
    ] = "",
    workload: Annotated[
        str,
        typer.Option(
            help="w1_c16, w1_c32: chat, 16 or 32 in flight. w2: one stream. w3: a shared prefix. "
            "w4: one prompt of 2,048 tokens. smoke: four requests."
        ),
    ] = "w1_c16",
    trace: Annotated[
        Path | None,
        typer.Option(
            help="In place of a workload: a trace, at its own times.",
            show_default=False,
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    trace_format: Annotated[
        str | None,
        typer.Option(
            "--format", help="azure, mooncake or jsonl.", show_default="told by the first line"
        ),
    ] = None,
    speed: Annotated[float, typer.Option(help="Times as fast as the trace.")] = 1.0,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            help="In place of a workload: random prompts this long.", show_default=False, min=1
        ),
    ] = None,
    output_tokens: Annotated[int, typer.Option(help="Length of their answers.", min=1)] = 128,
    shared_tokens: Annotated[
        int, typer.Option(help="How many tokens these prompts have in common.", min=0)
    ] = 0,
    structured: Annotated[
        bool,
        typer.Option(
            "--structured",
            help="In place of a workload: 30 JSON schemas, and the same lengths without, in turns.",
        ),
    ] = False,
    rounds: Annotated[int, typer.Option(help="Turns of --structured.", min=1)] = 3,
    requests: Annotated[
        int | None,
        typer.Option(help="Send so many.", show_default="the load's; 64 or 300 made up", min=1),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            help="Closed loop: keep so many in flight.", show_default="workload's, or 16", min=1
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Open loop: so many a second, Poisson, whatever is in flight.",
            show_default=False,
        ),
    ] = None,
    slo_ttft_ms: Annotated[
        float | None, typer.Option(help="Goodput: first token by then.", show_default=False)
    ] = None,
    slo_itl_ms: Annotated[
        float | None,
        typer.Option(help="Goodput: as long between tokens, on average.", show_default=False),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds until a request has failed.", min=0.001)
    ] = 600.0,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Write throughput and waits to this PNG or SVG (extra `plot`).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Load a running server, Blockyard's or another, and measure throughput and waits.

    Greedy; answers have exact lengths, so that servers are asked for the same work.
    """
    from blockyard.cluster.benchmark.load_endpoint import EndpointError
    from blockyard.cluster.benchmark.serve_bench import ServeQuestion

    what: str | Path | MadeUpLoad | StructuredLoad = workload
    try:
        if sum((trace is not None, prompt_tokens is not None, structured)) > 1:
            raise ValueError("give one of --trace, --prompt-tokens and --structured")
        if trace is not None:
            what = trace
        elif prompt_tokens is not None:
            what = _made_up(requests, prompt_tokens, output_tokens, shared_tokens)
        elif structured:
            if rate is not None:
                raise ValueError("--structured is a closed loop; leave out --rate")
            what = _structured(requests, concurrency, rounds, timeout)
        objective = _objective(slo_ttft_ms, slo_itl_ms)
        question = ServeQuestion(
            what, model, trace_format, requests, concurrency, rate, speed, objective, timeout
        )
        if plot is not None:
            from blockyard.cluster.capacity.plot_file import check_plot

            check_plot(plot)
        bench = asyncio.run(_measure(address, url, chat, question))
    except ValueError as error:
        raise fail(str(error), EXIT_MISUSED) from None
    except (EndpointError, RuntimeError) as error:
        raise fail(str(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _tell(bench, plot, as_json)


def _tell(bench: "ServeBench", plot: Path | None, as_json: bool) -> None:
    if plot is not None:
        from blockyard.cluster.benchmark.load_plot import write_load_plot

        speed = bench.report["output_tokens_per_s"]
        write_load_plot(
            plot, bench.outcomes, f"{bench.report['model']}: {speed:,.0f} output tokens/s"
        )
    if as_json:
        typer.echo(json.dumps(bench.report))
    else:
        from rich.console import Console

        from blockyard.cluster.benchmark.load_text import show_load

        show_load(bench.report, Console())
    failed = next((outcome for outcome in bench.outcomes if outcome.error), None)
    if failed is not None:
        raise fail(f"{sum(bench.report['errors'].values()):,} requests failed: {failed.message}")


def _made_up(requests: int | None, prompt: int, output: int, shared: int) -> "MadeUpLoad":
    from blockyard.cluster.benchmark.load_requests import MadeUpLoad

    return MadeUpLoad(requests or _MADE_UP_REQUESTS, prompt, output, shared)


def _structured(
    requests: int | None, concurrency: int | None, rounds: int, timeout: float
) -> "StructuredLoad":
    from blockyard.cluster.benchmark.structured_load import StructuredLoad

    return StructuredLoad(
        requests or _STRUCTURED_REQUESTS, concurrency or _CONCURRENCY, rounds, timeout
    )


def _objective(ttft_ms: float | None, itl_ms: float | None) -> "Objective | None":
    from blockyard.cluster.benchmark.load_summary import Objective

    return Objective(ttft_ms, itl_ms) if (ttft_ms, itl_ms) != (None, None) else None


async def _measure(
    address: str | None, url: str | None, chat: bool, question: "ServeQuestion"
) -> "ServeBench":
    from blockyard.cluster.benchmark.serve_bench import measure_serve

    endpoint = _endpoint(address, url, chat)
    try:
        with _progress() as (starts, ended):
            return await measure_serve(endpoint, question, starts, ended)
    finally:
        await endpoint.close()


def _endpoint(address: str | None, url: str | None, chat: bool) -> "Endpoint":
    from blockyard.cluster.client import API_KEY_VARIABLE, GenerationClient

    if url is not None:
        from blockyard.cluster.benchmark.openai_endpoint import OpenAiEndpoint

        return OpenAiEndpoint(url, chat, os.environ.get(API_KEY_VARIABLE, ""))
    from blockyard.cluster.benchmark.grpc_endpoint import GrpcEndpoint

    return GrpcEndpoint(GenerationClient(address), chat)


@contextmanager
def _progress() -> "Iterator[tuple[Callable[[int], None], Callable[[Outcome], None]]]":
    """A bar on standard error, one step for each request that ends; nothing in a log."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("requests", total=None)
        tokens = 0

        def starts(total: int) -> None:
            bar.update(task, total=total)

        def ended(outcome: "Outcome") -> None:
            nonlocal tokens
            tokens += outcome.output_tokens
            bar.update(task, advance=1, description=f"{tokens:,} tokens")

        yield starts, ended
