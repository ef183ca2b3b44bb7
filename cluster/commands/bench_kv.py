"""`blockyard bench kv`: what it costs to keep keys and values in fewer bits."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from blockyard.cluster.commands.errors import EXIT_INTERRUPTED, EXIT_MISUSED, fail
from blockyard.cluster.commands.start import Model

__all__ = ["bench_kv"]


def bench_kv(
    text: Annotated[
        Path,
        typer.Option(help="The text; its first 1,024 tokens count.", exists=True, dir_okay=False),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    model: Model = "smollm2-135m",
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads of a step.", show_default="all cores", min=1),
    ] = None,
) -> None:
    """Measure how well a model foretells a text with KV in each dtype, fp8 by plain torch."""
    from blockyard.cluster.benchmark.kv_quality import measure_kv_quality
    from blockyard.cluster.tokenizer import load_tokenizer
    from blockyard.workers.catalog import ModelUnavailable, SilentProgress, resolve_model

    try:
        directory = resolve_model(model, None, SilentProgress())
        tokens = load_tokenizer(directory).encode_prompt(text.read_text(encoding="utf-8"))
        bench = measure_kv_quality(
            directory,
            threads or len(os.sched_getaffinity(0)),
            tokens,
            lambda what: typer.echo(f"measuring {what}", err=True),
        )
    except ModelUnavailable as error:
        raise fail(str(error)) from None
    except ValueError as error:
        raise fail(str(error), EXIT_MISUSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(asdict(bench)))
        return
    typer.echo(f"{bench.model}, {bench.tokens:,} tokens of {text.name}")
    for kind in bench.kinds:
        typer.echo(
            f"{kind.kv_dtype:<8}  perplexity {kind.perplexity:>9.4f}  {kind.loss:+.3%} "
            f"+- {kind.loss_error:.3%}  divergence {kind.divergence:.6f}"
        )
