"""Every server is measured so that no pass finds its prompts in a cache."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 16


@pytest.fixture(scope="module")
def measuring() -> ModuleType:
    path = ROOT / "benchmarks/peers/measuring.py"
    spec = importlib.util.spec_from_file_location("measuring", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_two_passes_begin_alike(measuring: ModuleType, tmp_path: Path) -> None:
    requests = [{"id": n, "prompt": [32 + n] * BLOCK, "max_tokens": 1} for n in range(6)]
    workloads = []
    for name in ("w1_c16", "w1_c32"):
        workload = {"name": name, "concurrency": 2, "repeat": 2, "requests": requests}
        workloads.append(tmp_path / f"{name}.json")
        workloads[-1].write_text(json.dumps(workload), encoding="utf-8")
    begun: list[tuple[int, ...]] = []

    def serve(
        asked: list[dict[str, Any]], concurrency: int
    ) -> dict[int, tuple[float, list[float]]]:
        begun.extend(tuple(one["prompt"][:BLOCK]) for one in asked)
        return {one["id"]: (0.0, [0.1] * one["max_tokens"]) for one in asked}

    for number in range(3):
        options = SimpleNamespace(
            **{"workload": workloads, "first_pass": number, "passes": 1, "label": "fp32"},
            **{"threads": 1, "out": tmp_path / "lines.jsonl"},
        )
        measuring.run_passes(options, "fake", {"version": "0"}, serve)
    assert len(set(begun)) == len(begun)
