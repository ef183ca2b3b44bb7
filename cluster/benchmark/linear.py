"""How fast linears are on this CPU by rows and by storage of weights, and what storage costs.

Times all linears of one decode step of a model, the head included, one after the other as a step
does. Weights are made up: only their shapes count. Perplexity is of the real model on a text.
Units: milliseconds, GB (1e9 bytes) and GFLOP a second.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from blockyard.workers.cpu.ceilings import Ceilings, measure_ceilings
from blockyard.workers.cpu.library import NativePool, load_library
from blockyard.workers.cpu.packed import PackedLinear, WeightStorage
from blockyard.workers.cpu.perplexity import measure_perplexity

__all__ = ["LinearBench", "LinearSpeed", "measure_linear"]

ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 128, 256)
_TEXT_TOKENS = 1024
_TIMED_SECONDS = 0.3
"""For one combination, at least three runs; the best counts, since others only disturb."""


@dataclass(frozen=True, slots=True)
class LinearSpeed:
    """One storage at one number of rows; `floor_ratio` is time over this machine's floor."""

    storage: str
    rows: int
    ms: float
    gb_per_s: float
    gflop_per_s: float
    floor_ratio: float


@dataclass(frozen=True, slots=True)
class LinearBench:
    """All figures.

    Attributes:
        model: whose shapes they are.
        threads: that worked.
        read_gb_per_s: what the machine reads at most, measured beforehand.
        compute_gflop_per_s: what it computes at most, by storage.
        linears: by storage and rows.
        torch_fp32_ms: the same linears by torch, by rows.
        perplexity: of the model by storage; empty where not measured.
    """

    model: str
    threads: int
    read_gb_per_s: float
    compute_gflop_per_s: dict[str, float]
    linears: tuple[LinearSpeed, ...]
    torch_fp32_ms: dict[str, float]
    perplexity: dict[str, float]


def measure_linear(
    directory: Path,
    threads: int,
    text_tokens: Sequence[int] | None,
    progress: Callable[[str], None] = lambda _: None,
) -> LinearBench:
    """Measure everything; takes a minute or two.

    Args:
        directory: a model of the Llama family; its shapes are used, and its weights for a text.
        threads: that work.
        text_tokens: the text for the perplexity; None leaves it out.
        progress: told what comes.

    Raises:
        NativeUnavailable: there is no native code on this machine.
    """
    pool = load_library().pool(threads)
    torch.set_num_threads(threads)
    progress("what this machine can do")
    ceilings = {storage: measure_ceilings(pool, storage) for storage in WeightStorage}
    shapes = _shapes(directory)
    linears: list[LinearSpeed] = []
    for storage in WeightStorage:
        progress(f"linears in {storage}")
        linears.extend(_measure_storage(pool, shapes, storage, ceilings[storage]))
    progress("linears by torch")
    by_torch = _measure_torch(shapes)
    perplexity = {}
    for storage in WeightStorage if text_tokens is not None else ():
        progress(f"perplexity in {storage}")
        assert text_tokens is not None
        value = measure_perplexity(directory, text_tokens[:_TEXT_TOKENS], storage, threads)
        perplexity[storage.value] = round(value, 4)
    return LinearBench(
        directory.name,
        threads,
        round(max(one.bytes_per_second for one in ceilings.values()) / 1e9, 2),
        {
            storage.value: round(one.operations_per_second / 1e9, 1)
            for storage, one in ceilings.items()
        },
        tuple(linears),
        by_torch,
        perplexity,
    )


def _shapes(directory: Path) -> list[tuple[int, int]]:
    """Columns and inputs of every linear of a step."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    layer = [
        ((heads + 2 * kv_heads) * head_dim, hidden),
        (hidden, heads * head_dim),
        (2 * inner, hidden),
        (hidden, inner),
    ]
    return [*(layer * config["num_hidden_layers"]), (config["vocab_size"], hidden)]


def _measure_storage(
    pool: NativePool,
    shapes: Sequence[tuple[int, int]],
    storage: WeightStorage,
    ceilings: Ceilings,
) -> list[LinearSpeed]:
    layers = [
        PackedLinear(pool, [torch.randn(columns, inputs)], storage) for columns, inputs in shapes
    ]
    num_bytes = sum(layer.nbytes for layer in layers)
    one_row = 2 * sum(columns * inputs for columns, inputs in shapes)
    speeds = []
    for rows in ROWS:
        inputs = {width: torch.randn(rows, width) for _, width in shapes}
        # As in a step, what they answer lies where the step before has left its own.
        outputs = {layer.columns: layer.multiply(inputs[layer.inputs]) for layer in layers}

        def step(
            inputs: dict[int, torch.Tensor] = inputs, outputs: dict[int, torch.Tensor] = outputs
        ) -> None:
            for layer in layers:
                layer.multiply(inputs[layer.inputs], outputs=outputs[layer.columns])

        seconds = _least_seconds(step)
        floor = max(
            num_bytes / ceilings.bytes_per_second,
            rows * one_row / ceilings.operations_per_second,
        )
        speeds.append(
            LinearSpeed(
                storage.value,
                rows,
                round(seconds * 1e3, 2),
                round(num_bytes / seconds / 1e9, 2),
                round(rows * one_row / seconds / 1e9, 1),
                round(seconds / floor, 3),
            )
        )
    return speeds


def _measure_torch(shapes: Sequence[tuple[int, int]]) -> dict[str, float]:
    weights = [torch.randn(columns, inputs) for columns, inputs in shapes]
    answer = {}
    with torch.inference_mode():
        for rows in ROWS:
            inputs = {width: torch.randn(rows, width) for _, width in shapes}
            outputs = {columns: torch.empty(rows, columns) for columns, _ in shapes}

            def step(
                inputs: dict[int, torch.Tensor] = inputs, outputs: dict[int, torch.Tensor] = outputs
            ) -> None:
                for weight in weights:
                    columns, width = weight.shape
                    torch.mm(inputs[width], weight.T, out=outputs[columns])

            answer[str(rows)] = round(_least_seconds(step) * 1e3, 2)
    return answer


def _least_seconds(run: Callable[[], object]) -> float:
    run()
    seconds: list[float] = []
    while len(seconds) < 3 or sum(seconds) < _TIMED_SECONDS:
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
