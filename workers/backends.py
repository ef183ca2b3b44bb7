"""Which attention backend a rank uses: kernels on a GPU, plain torch where they cannot serve.

The emulation runs the same kernels on a CPU, thread by thread: for tests of the kernels under the
real engine, not for serving.
"""

from collections.abc import Iterable

import torch

from blockyard.cuda.backend import AttentionBackend, AttentionForm, HeadShape
from blockyard.cuda.reference import ReferenceBackend

__all__ = ["backend_named", "backend_of_gpu", "kernels_missing", "resolve_device"]

_EMULATED_SLOTS = 8
"""Thread blocks that a GPU of the emulation runs at once: few, so that work is cut as on a GPU."""


def backend_named(name: str, device: torch.device) -> AttentionBackend:
    """The backend that `WorkerConfig.backend` names, other than `auto`.

    Raises:
        ValueError: it does not exist on this machine or this device.
    """
    if name == "torch":
        return ReferenceBackend()
    if name == "emulator":
        return _emulated(device)
    if name != "kernels":
        raise ValueError(f"backend is {name!r}; known are auto, torch, kernels and emulator")
    if device.type != "cuda":
        raise ValueError(f"backend is kernels, which run on a GPU; the device is {device}")
    return _kernels(device)


def backend_of_gpu(
    device: torch.device, shape: HeadShape, forms: Iterable[AttentionForm]
) -> AttentionBackend:
    """Kernels where they can be compiled and serve every layer, else plain torch."""
    if kernels_missing() is not None:
        return ReferenceBackend()
    kernels = _kernels(device)
    served = all(kernels.refusal(shape, form) is None for form in forms)
    return kernels if served else ReferenceBackend()


def resolve_device(name: str) -> torch.device:
    """The device that `WorkerConfig.device` names.

    Raises:
        ValueError: it does not exist on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device is {name!r}; known are auto, cpu and cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch sees no CUDA device here; use cpu or auto")
    return torch.device(name)


def kernels_missing() -> str | None:
    """Why kernels cannot be compiled on this machine, or None."""
    from blockyard.cuda.compiler import missing_compiler

    return missing_compiler()


def _kernels(device: torch.device) -> AttentionBackend:
    from blockyard.cuda.compiler import default_cache_dir
    from blockyard.cuda.kernel_backend import KernelBackend
    from blockyard.cuda.launch import GpuLibrary

    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    # Two thread blocks fit on each: see the kernels' use of shared memory.
    return KernelBackend(GpuLibrary(device, default_cache_dir()), device, 2 * multiprocessors)


def _emulated(device: torch.device) -> AttentionBackend:
    try:
        from blockyard.cuda.emulator.build import EmulatedLibrary, missing_tools
    except ModuleNotFoundError as error:
        raise ValueError(
            "backend is emulator, which is not installed: it comes with a clone of the sources"
        ) from error
    from blockyard.cuda.compiler import default_cache_dir
    from blockyard.cuda.kernel_backend import KernelBackend

    missing = missing_tools()
    if missing is not None or device.type != "cpu":
        raise ValueError(f"backend is emulator: {missing or f'the device is {device}'}")
    library = EmulatedLibrary(default_cache_dir() / "emulated")
    return KernelBackend(library, device, _EMULATED_SLOTS)
