"""`blockyard plan`: what a GPU memory holds, with contiguous reservations and with blocks."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.commands.capacity_options import (
    Allowance,
    AsJson,
    BlockSize,
    DraftModel,
    KvDtype,
    Model,
    Shape,
    Tp,
    WeightDtype,
    find_model,
)
from blockyard.cluster.commands.errors import EXIT_MISUSED, fail

if TYPE_CHECKING:
    from blockyard.scheduler.capacity.lengths import Lengths

__all__ = ["plan", "read_lengths"]


def plan(
    model: Model = None,
    shape: Shape = None,
    draft_model: DraftModel = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Of one GPU, such as 80GiB.", show_default=False)
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="All GPUs.", show_default="one group's", min=1)
    ] = None,
    tp: Tp = 1,
    weights: WeightDtype = "fp16",
    kv: KvDtype = "fp16",
    max_seq_len: Annotated[
        int | None,
        typer.Option(
            help="Tokens a contiguous server reserves for each request.",
            show_default="the model's context",
            min=1,
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Final lengths of requests: mean=680,p99=1850 (log-normal), mean=680 (all alike), "
            "or a trace file (Azure CSV, Mooncake JSON lines).",
            show_default=False,
        ),
    ] = None,
    kv_memory: Annotated[
        str | None,
        typer.Option(
            help="For KV in one group, in place of --gpu-memory, such as 50e9.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help="That want to run at once in one group.", show_default=False, min=1),
    ] = None,
    shared_prefix: Annotated[
        int, typer.Option(help="Tokens that all requests begin with.", min=0)
    ] = 0,
    block_size: BlockSize = 16,
    allowance: Allowance = "2GiB",
    outputs: Annotated[
        str | None,
        typer.Option(help="Answer lengths of one batch: 10,50,100,200.", show_default=False),
    ] = None,
    batching: Annotated[
        str, typer.Option(help="How those outputs are batched today: static or continuous.")
    ] = "static",
    free: Annotated[
        str | None, typer.Option(help="Free memory in all, such as 6GB.", show_default=False)
    ] = None,
    largest_hole: Annotated[
        str | None, typer.Option(help="Free memory in one piece.", show_default=False)
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(help="Memory a request needs.", show_default="one reservation"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count what a memory holds: contiguous reservations against blocks, and what would change."""
    from blockyard.cluster.capacity.model_shape import find_shape
    from blockyard.cluster.capacity.plan_report import PlanQuestion, answer_plan
    from blockyard.cluster.capacity.quantities import parse_bytes, parse_counts
    from blockyard.scheduler.capacity.kv_budget import KvBudget

    def amount(text: str | None) -> int | None:
        return None if text is None else parse_bytes(text)

    try:
        found = find_model(model, shape)
        limit = max_seq_len or (found.context_tokens if found is not None else None)
        budget = None
        if found is not None:
            budget = KvBudget(
                shape=found.shape,
                limit=limit or 1,
                gpu_memory_bytes=amount(gpu_memory),
                kv_memory_bytes=amount(kv_memory),
                num_ranks=tp,
                num_gpus=gpus or tp,
                weight_dtype=weights,
                kv_dtype=kv,
                block_size=block_size,
                allowance_bytes=parse_bytes(allowance),
                draft=None if draft_model is None else find_shape(draft_model).shape,
            )
        elif any(value is not None for value in (gpu_memory, kv_memory, lengths, requests)):
            raise ValueError(
                "whose memory? give --model or --shape layers,kv_heads,head_dim,params"
            )
        if batching not in ("static", "continuous"):
            raise ValueError(f"--batching is {batching!r}; give static or continuous")
        answer = answer_plan(
            PlanQuestion(
                budget=budget,
                has_limit=limit is not None,
                lengths=None if lengths is None else read_lengths(lengths),
                requests=requests,
                shared_prefix_tokens=shared_prefix,
                outputs=tuple(parse_counts(outputs)) if outputs is not None else (),
                static_batching=batching == "static",
                free_bytes=amount(free),
                largest_hole_bytes=amount(largest_hole),
                request_bytes=amount(request),
                notes=found.notes if found is not None else (),
            )
        )
    except ValueError as error:
        raise fail(str(error), EXIT_MISUSED) from None
    if as_json:
        typer.echo(json.dumps(answer))
        return
    from rich.console import Console

    from blockyard.cluster.capacity.plan_text import show_plan

    show_plan(answer, Console())


def read_lengths(text: str) -> "Lengths":
    """Lengths as the command line gives them: figures, or the name of a trace.

    Raises:
        ValueError: neither.
    """
    from blockyard.cluster.capacity.trace_reader import read_trace
    from blockyard.scheduler.capacity.lengths import (
        constant_lengths,
        fitted_lengths,
        measured_lengths,
    )

    path = Path(text).expanduser()
    if path.is_file():
        return measured_lengths([entry.total_tokens for entry in read_trace(path)], path.name)
    figures: dict[str, float] = {}
    try:
        for part in text.split(","):
            name, _, value = part.partition("=")
            figures[name.strip()] = float(value)
        if not {"mean"} <= set(figures) <= {"mean", "p99"}:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"--lengths {text!r} is neither a file nor figures such as mean=680,p99=1850"
        ) from None
    if "p99" in figures:
        return fitted_lengths(figures["mean"], figures["p99"])
    return constant_lengths(figures["mean"])
