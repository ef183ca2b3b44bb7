"""Which dtypes KV is kept in, and that the worker's paths keep it alike."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.workers.catalog import DEFAULT_MODEL, default_cache_dir
from blockyard.workers.config import WorkerConfig
from blockyard.workers.kv_dtype import resolve_kv_dtype
from blockyard.workers.worker import ModelWorker

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SMOLLM2 = default_cache_dir() / DEFAULT_MODEL
TEXT = Path(__file__).parents[2] / "docs" / "wastes.md"


@pytest.mark.parametrize(
    ("name", "model", "device", "backend", "expected"),
    [
        ("auto", torch.float16, GPU, "auto", torch.float16),
        ("int8", torch.float32, CPU, "auto", torch.int8),
        ("bfloat16", torch.float32, CPU, "auto", torch.bfloat16),
        ("bfloat16", torch.bfloat16, GPU, "auto", torch.bfloat16),
        ("fp8", torch.bfloat16, GPU, "auto", torch.float8_e4m3fn),
        ("fp8", torch.bfloat16, CPU, "emulator", torch.float8_e4m3fn),
        ("int8", torch.bfloat16, GPU, "torch", torch.int8),
    ],
)
def test_what_is_asked_is_kept_where_something_reads_it(
    name: str, model: torch.dtype, device: torch.device, backend: str, expected: torch.dtype
) -> None:
    config = WorkerConfig("", 64, kv_dtype=name, backend=backend)
    assert resolve_kv_dtype(config, model, device) is expected


@pytest.mark.parametrize(
    ("name", "device", "backend", "message"),
    [
        ("fp7", CPU, "auto", "known are auto, bfloat16, int8, fp8"),
        ("fp8", CPU, "auto", "on a CPU use int8"),
        ("int8", GPU, "auto", "kernels read fp8 and the model's own dtype, which is float16"),
        ("int8", CPU, "emulator", "kernels read fp8"),
        ("bfloat16", GPU, "auto", "kernels read fp8"),
    ],
)
def test_what_nothing_reads_is_refused(
    name: str, device: torch.device, backend: str, message: str
) -> None:
    config = WorkerConfig("", 64, kv_dtype=name, backend=backend)
    with pytest.raises(ValueError, match=message):
        resolve_kv_dtype(config, torch.float16, device)


@pytest.fixture
def config(tiny_dir: Path) -> WorkerConfig:
    return WorkerConfig(
        model_dir=str(tiny_dir), max_context_tokens=512, device="cpu", num_blocks=64, threads=1
    )


@pytest.mark.parametrize(("name", "token_bytes"), [("bfloat16", 256), ("int8", 160)])
def test_native_layers_and_plain_torch_keep_the_same(
    config: WorkerConfig, name: str, token_bytes: int, make_scheduler: Callable[..., Any]
) -> None:
    rng = random.Random(2)
    prompts = {f"r{length}": [rng.randrange(300) for _ in range(length)] for length in (3, 70)}
    outputs = []
    for backend in ("auto", "torch"):
        worker = ModelWorker(replace(config, kv_dtype=name, backend=backend))
        profile = worker.load()
        assert profile.block_bytes == 16 * token_bytes
        assert profile.dtype == "float32"  # of sums
        worker.allocate(64)
        worker._cache.pool.fill_(0xFF)  # type: ignore[union-attr]
        scheduler = make_scheduler()
        scheduler.worker = worker
        for request, prompt in prompts.items():
            scheduler.add(request, prompt)
        for _ in range(14):
            assert scheduler.run(**dict.fromkeys(prompts, 24)).errors == ()
        outputs.append([scheduler.output(request) for request in prompts])
    assert outputs[0] == outputs[1]
    assert all(len(output) > 10 for output in outputs[0])


def test_less_memory_holds_as_many_blocks(config: WorkerConfig) -> None:
    room = replace(config, num_blocks=None, kv_memory_bytes=2 << 20, max_running=256)
    plain, small = (ModelWorker(replace(room, kv_dtype=name)).load() for name in ("auto", "int8"))
    assert plain.max_blocks == (2 << 20) // (16 * 512)
    assert small.max_blocks == (2 << 20) // (16 * 160)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(
    not (SMOLLM2 / "config.json").exists(), reason="the default model is not fetched here"
)
def test_kv_in_fewer_bits_foretells_a_text_as_well() -> None:
    from blockyard.cluster.benchmark.kv_quality import measure_kv_quality
    from blockyard.cluster.tokenizer import load_tokenizer

    tokens = load_tokenizer(SMOLLM2).encode_prompt(TEXT.read_text(encoding="utf-8"))
    bench = measure_kv_quality(SMOLLM2, 2, tokens)
    losses = {kind.kv_dtype: kind.loss for kind in bench.kinds}
    assert losses["float32"] == 0
    assert 0 < abs(losses["int8"]) < 0.005
    assert 0 < abs(losses["bfloat16"]) < 0.005
    # One text scatters; the four of docs/models.md together lose 0.43 %.
    assert 0 < abs(losses["fp8"]) < 0.01
