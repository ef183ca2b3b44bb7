"""The ingress and the command start quickly and stay small: nothing heavy is loaded."""

import subprocess
import sys

import pytest


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


def test_the_probe_itself_finds_what_is_loaded() -> None:
    assert loaded_by("numpy", ("numpy", "torch")) == ["numpy"]
