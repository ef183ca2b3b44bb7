"""What adapters add in native linears and layers, against torch: row by row, and the modules."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from blockyard.cuda.backend import AttentionBatch
from blockyard.workers.adapter_description import describe_adapter
from blockyard.workers.adapter_rows import AdapterStack, StepRows, add_row_by_row, step_rows
from blockyard.workers.adapters import AdapterBank
from blockyard.workers.attention import CachedAttention
from blockyard.workers.collectives import Communicator
from blockyard.workers.cpu import fuse
from blockyard.workers.cpu.attention import NativeBackend
from blockyard.workers.cpu.library import NativePool
from blockyard.workers.cpu.low_rank import RowAdapters, native_adapters
from blockyard.workers.cpu.packed import PackedLinear, WeightStorage
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.loader import load_model
from blockyard.workers.model import DecoderModel
from blockyard.workers.progress import SilentProgress

CPU = torch.device("cpu")
CONTEXT = 64
SLOTS, RANK = 4, 6

ROWS = [
    pytest.param([2], [1], id="one row"),
    pytest.param([0, -1, 3, 0, 1], [1, 2, 1, 1, 3], id="rows of all, in any order"),
    pytest.param([-1, 1], [5, 40], id="more than one piece"),
    pytest.param([3, 0, -1, 1], [70, 33, 2, 45], id="long chunks"),
    pytest.param([-1], [7], id="the base model alone"),
]


def stack(inputs: int, outputs: int, ranks: Sequence[int], seed: int) -> AdapterStack:
    """Matrices of which all that no slot uses is no number."""
    draw = torch.Generator().manual_seed(seed)
    made = [torch.full((SLOTS, RANK, columns), float("nan")) for columns in (inputs, outputs)]
    for slot, rank in enumerate(ranks):
        for matrix in made:
            matrix[slot, :rank] = torch.randn(rank, matrix.shape[2], generator=draw) * 0.3
    return AdapterStack(made[0], made[1], torch.tensor(ranks, dtype=torch.int32))


def used(matrices: AdapterStack) -> AdapterStack:
    """The same with zeros in place of no numbers, as a bank has it."""
    return AdapterStack(matrices.down.nan_to_num(0.0), matrices.up.nan_to_num(0.0), matrices.ranks)


@pytest.mark.parametrize(("slots", "counts"), ROWS)
@pytest.mark.parametrize("turning", [False, True])
def test_a_linear_adds_what_each_rows_adapter_makes(
    native_pool: NativePool, slots: list[int], counts: list[int], turning: bool
) -> None:
    """Three layers side by side, one of them without adapters, or two whose panels take turns."""
    inputs = 43
    widths = [24, 24] if turning else [32, 16, 21]
    ranks = [[6, 1, 0, 5], [0, 3, 6, 0], [4, 0, 2, 1]]
    stacks: list[AdapterStack | None] = [
        stack(inputs, width, ranks[seed], seed) for seed, width in enumerate(widths)
    ]
    if not turning:
        stacks[1] = None
    weights = [torch.randn(width, inputs) for width in widths]
    layer = PackedLinear(native_pool, weights, WeightStorage.FP32, alternating=turning)
    rows = step_rows(slots, np.array(counts, dtype=np.int32), RANK, CPU)
    owners = np.repeat(slots, counts).tolist()
    x = torch.randn(len(owners), inputs)
    shapes = [(inputs, width) for width in widths]
    added = layer.multiply(x, RowAdapters(stacks, shapes, owners))
    plain = layer.multiply(x)
    assert added.isfinite().all()
    panels = [range(part, 4, 2) if turning else None for part in range(len(widths))]
    first = 0
    for weight, own, width, turns in zip(weights, stacks, widths, panels, strict=True):
        at = (
            torch.arange(first, first + width)
            if turns is None
            else torch.cat([torch.arange(16) + 16 * panel for panel in turns])[:width]
        )
        expected = x @ weight.T
        torch.testing.assert_close(plain[:, at], expected, atol=1e-4, rtol=1e-4)
        if rows is not None and own is not None:
            add_row_by_row(expected, x, used(own), rows)
        torch.testing.assert_close(added[:, at], expected, atol=1e-4, rtol=1e-4)
        first += width


def test_stacks_of_another_shape_or_dtype_are_refused() -> None:
    own = stack(8, 16, [1] * SLOTS, 0)
    with pytest.raises(ValueError, match="8 inputs and 16 outputs at a linear of 8 and 17"):
        native_adapters([own], [(8, 17)])
    halves = AdapterStack(own.down.half(), own.up.half(), own.ranks)
    with pytest.raises(TypeError, match="float16"):
        native_adapters([halves], [(8, 16)])


SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 96,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, attention_bias=True, tie_word_embeddings=True)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
}


class Stepper:
    """Runs steps of three requests through native layers, or through the model's modules."""

    def __init__(self, model: DecoderModel, pool: NativePool, native: bool) -> None:
        self._model = model
        self._native = native
        self._backend = NativeBackend(pool)
        shape = model.attention
        geometry = KVGeometry(shape.layers, shape.kv_heads, shape.head_dim, 16, model.dtype)
        self._cache = KVCache(geometry, 6, CPU)
        self._lengths = np.zeros(3, dtype=np.int32)

    def run(
        self, bank: AdapterBank, adapters: Sequence[str], counts: Sequence[int]
    ) -> torch.Tensor:
        tables = np.array([[2, 0], [1, 3], [5, 4]], dtype=np.int32)
        starts, step = self._lengths, np.array(counts, dtype=np.int32)
        self._lengths = starts + step
        spans = zip(starts, self._lengths, strict=True)
        places = np.concatenate([np.arange(start, end) for start, end in spans])
        owners = np.repeat(np.arange(3), step)
        slots = tables[owners, places // 16].astype(np.int64) * 16 + places % 16
        batch = AttentionBatch(
            step, self._lengths, torch.from_numpy(tables), torch.from_numpy(slots), 16
        )
        rows = bank.rows(adapters, step)
        ids = (torch.from_numpy(places) * 7 + torch.from_numpy(owners) * 31) % 96
        wanted = torch.from_numpy(np.cumsum(step) - 1)
        attention = CachedAttention(self._cache, self._backend.begin(batch))
        at = torch.from_numpy(places)
        with torch.inference_mode():
            if self._native:
                return self._model.forward(ids, at, wanted, attention, rows)
            return by_modules(self._model, bank, rows, (ids, at, wanted, attention))


def by_modules(
    model: DecoderModel, bank: AdapterBank, rows: StepRows | None, step: tuple[Any, ...]
) -> torch.Tensor:
    if rows is None:
        return model._run_modules(*step)
    with bank.during(rows):
        return model._run_modules(*step)


@pytest.mark.parametrize(
    ("kind", "storage", "rank"),
    [
        *(("llama", storage, None) for storage in WeightStorage),
        ("qwen3", WeightStorage.FP32, None),
        ("llama", WeightStorage.FP32, 0),
        ("llama", WeightStorage.INT8, 1),
    ],
)
def test_native_layers_with_adapters_equal_the_modules(
    native_pool: NativePool,
    tmp_path: Path,
    make_adapter: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    storage: WeightStorage,
    rank: int | None,
) -> None:
    """Three KV heads on two ranks are uneven; a rank alone takes its own products for sums."""
    torch.manual_seed(5)
    whole = MODELS[kind]()
    whole.save_pretrained(tmp_path / "model")
    make_adapter(tmp_path / "all", whole, 1, rank=5)
    make_adapter(tmp_path / "some", whole, 2, rank=8, targets=("q_proj", "v_proj", "up_proj"))
    own = Communicator(rank or 0, 1 if rank is None else 2)
    model = load_model(tmp_path / "model", CPU, "auto", CONTEXT, SilentProgress(), own)
    monkeypatch.setattr(fuse, "_give_up_weights", lambda parts, decoder: None)
    assert fuse.put_on_cpu_path(model, 2, CONTEXT, storage).reason == ""
    bank = AdapterBank(model.module, model.sites, 3, 8, model.dtype, CPU)
    model.adapt(bank)
    native, modules = (Stepper(model, native_pool, way) for way in (True, False))
    every, some = (describe_adapter(tmp_path / name, name, 8) for name in ("all", "some"))
    bank.load(some)
    steps = [
        (["", some.adapter_id, some.adapter_id], [9, 12, 3]),
        ([every.adapter_id, some.adapter_id, ""], [1, 1, 8]),
        (["", "", every.adapter_id], [1, 1, 1]),
        (["", "", ""], [1, 1, 1]),
    ]
    for number, (adapters, counts) in enumerate(steps):
        if number == 1:
            bank.load(every)  # adds to linears that nothing was added to before
        expected = modules.run(bank, adapters, counts)
        found = native.run(bank, adapters, counts)
        difference = float((found - expected).abs().max() / expected.abs().max())
        assert difference < fuse.MOST_DIFFERENCE, (number, difference)
