"""The ingress and the command start quickly and stay small: nothing heavy is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from blockyard.workers.catalog import WITNESS_MODEL, resolve_model
from blockyard.workers.progress import SilentProgress


def loaded_by(module: str, heavy: tuple[str, ...]) -> list[str]:
    """Which of `heavy` a fresh interpreter has after importing `module`."""
    code = (
        f"import sys, importlib; importlib.import_module({module!r}); "
        f"print(*[name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    "module", ["grpc_front", "request.generation", "tokenizer", "request.validation"]
)
def test_the_request_path_loads_neither_torch_nor_ray(module: str) -> None:
    assert loaded_by(f"blockyard.cluster.{module}", ("torch", "transformers", "ray")) == []


def test_help_needs_no_grpc_either() -> None:
    heavy = ("torch", "transformers", "ray", "grpc", "tokenizers", "numpy")
    assert loaded_by("blockyard.cluster.cli", heavy) == []


def test_a_witness_starts_serves_and_rests_without_torch(tmp_path: Path) -> None:
    """It stands for a model in tests of clusters, which start it again and again."""
    folder = resolve_model(WITNESS_MODEL, tmp_path, SilentProgress())
    code = f"""
import sys
from blockyard.cluster.rank import Rank
from blockyard.workers.config import WorkerConfig, WorkerKind
rank = Rank("127.0.0.1")
witness = WorkerKind.WITNESS
rank.load(WorkerConfig({str(folder)!r}, max_context_tokens=64, kind=witness, num_blocks=8))
rank.join(rank.open_meeting(1, ["here"]))
rank.allocate(8)
rank.listen()
rank.allocator_memory()
rank.rest()
print(*[name for name in ("torch", "transformers", "ray") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_probe_itself_finds_what_is_loaded() -> None:
    assert loaded_by("numpy", ("numpy", "torch")) == ["numpy"]
