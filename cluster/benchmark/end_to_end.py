"""How fast a workload is served on this machine, from a request to its last token.

In this process: scheduler, engine and worker, without wires. A request is timed from its
submission; tokens of one step arrive together. The floor is what the same machine needs to read
the weights and compute the linears and nothing else, decode steps being as full as the workload
allows. Units: milliseconds, tokens, MiB.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from blockyard.cluster.benchmark.local_server import RequestTimes, local_server
from blockyard.cluster.benchmark.workloads import Workload, WorkloadRequest
from blockyard.workers.cpu.ceilings import Ceilings, DecoderWork
from blockyard.workers.description import ModelDescription

__all__ = [
    "EndToEndBench",
    "Pass",
    "decoder_work",
    "floor_seconds",
    "measure_in_process",
    "summarise",
]

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Pass:
    """One repeat of a workload: how long it took, and the times of its requests."""

    seconds: float
    requests: tuple[RequestTimes, ...]

    @property
    def output_tokens_per_second(self) -> float:
        """Of all requests together."""
        return sum(len(request.tokens) for request in self.requests) / self.seconds


@dataclass(frozen=True, slots=True)
class EndToEndBench:
    """Medians over passes; of waits also the 99th percentile.

    Attributes:
        workload, weights, through: what was measured, and how it was reached.
        output_tokens_per_s: of all requests together.
        ttft_ms: `p50` and `p99` from submission to the first token.
        itl_ms: `p50` and `p99` between tokens of one request.
        peak_memory_mib: of this process and those it started.
        floor_ratio: time over what this machine needs at least; 1 would be perfect.
    """

    workload: str
    weights: str
    through: str
    output_tokens_per_s: float
    ttft_ms: dict[str, float]
    itl_ms: dict[str, float]
    peak_memory_mib: float
    floor_ratio: float


def summarise(
    workload: Workload,
    weights: str,
    through: str,
    passes: Sequence[Pass],
    peak_memory_mib: float,
    floor: float,
) -> EndToEndBench:
    """The figures of some passes."""
    requests = [request for one in passes for request in one.requests]
    first = [request.tokens[0] - request.submitted for request in requests]
    between = [
        later - earlier
        for request in requests
        for earlier, later in zip(request.tokens, request.tokens[1:], strict=False)
    ]
    return EndToEndBench(
        workload=workload.name,
        weights=weights,
        through=through,
        output_tokens_per_s=round(median(one.output_tokens_per_second for one in passes), 2),
        ttft_ms=_quantiles(first),
        itl_ms=_quantiles(between),
        peak_memory_mib=round(peak_memory_mib, 1),
        floor_ratio=round(median(one.seconds for one in passes) / floor, 3),
    )


def floor_seconds(workload: Workload, work: DecoderWork, ceilings: Ceilings) -> float:
    """Least time of one repeat: every prompt's own tokens once, then decode steps, all full."""
    requests = workload.requests
    shared = _shared_tokens(requests)
    prefill = shared + sum(len(request.prompt) - shared for request in requests)
    decoded = workload.output_tokens - len(requests)  # each first token comes of the prefill
    rows = min(workload.concurrency, len(requests))
    return (
        work.prefill_floor(prefill, ceilings) + work.decode_floor(rows, ceilings) * decoded / rows
    )


def decoder_work(directory: str, weight_bytes: int) -> DecoderWork:
    """What a token costs a decoder of the Llama family, by its configuration."""
    config = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    layer = attention + 3 * hidden * config["intermediate_size"]
    return DecoderWork(
        weight_bytes, 2 * config["num_hidden_layers"] * layer, 2 * hidden * config["vocab_size"]
    )


async def measure_in_process(
    model: ModelDescription, workload: Workload, passes: int, **settings: Any
) -> tuple[list[Pass], int]:
    """Serve the workload's passes, a short one first that is not counted.

    Args:
        model: whose files are here.
        workload: what to serve.
        passes: how often.
        settings: as for `local_server`.

    Returns:
        The passes, and the bytes of the weights.
    """
    at_once = max(32, workload.concurrency)
    async with local_server(model, max_running=at_once, **settings) as server:
        first = [
            WorkloadRequest(request.prompt, min(request.max_tokens, _WARM_UP_TOKENS))
            for request in workload.shifted(900, model.vocab_size).requests[:4]
        ]
        await server.serve(first, workload.concurrency)
        measured = []
        for number in range(passes):
            for repeat in range(workload.repeats):
                shifted = workload.shifted(10 * number + repeat, model.vocab_size)
                began = time.perf_counter()
                times = await server.serve(shifted.requests, workload.concurrency)
                measured.append(Pass(time.perf_counter() - began, times))
        return measured, server.weight_bytes


def _shared_tokens(requests: Sequence[WorkloadRequest]) -> int:
    """How many tokens all prompts begin with."""
    if len(requests) < 2:
        return 0
    count = 0
    for column in zip(*(request.prompt for request in requests), strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {"p50": 0.0, "p99": 0.0}
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

    return {"p50": at(0.5), "p99": at(0.99)}
