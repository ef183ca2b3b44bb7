"""Which backend a name means, and what is said where it cannot be."""

import pytest
import torch

from blockyard.cuda.emulator import build
from blockyard.cuda.kernel_backend import KernelBackend
from blockyard.cuda.reference import ReferenceBackend
from blockyard.workers.backends import backend_named

CPU = torch.device("cpu")


def test_torch_is_the_reference() -> None:
    assert isinstance(backend_named("torch", CPU), ReferenceBackend)


def test_the_emulator_runs_kernels_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "missing_tools", lambda: None)
    assert isinstance(backend_named("emulator", CPU), KernelBackend)


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("kernels", "cpu", "run on a GPU; the device is cpu"),
        ("emulator", "cuda", "the device is cuda"),
        ("fast", "cpu", "known are auto, torch, kernels and emulator"),
    ],
)
def test_what_cannot_be_is_said(
    monkeypatch: pytest.MonkeyPatch, name: str, device: str, reason: str
) -> None:
    monkeypatch.setattr(build, "missing_tools", lambda: None)
    with pytest.raises(ValueError, match=reason):
        backend_named(name, torch.device(device))


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "missing_tools", lambda: "g++ is not installed")
    with pytest.raises(ValueError, match=r"emulator: g\+\+ is not installed"):
        backend_named("emulator", CPU)
