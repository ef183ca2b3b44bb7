"""Builds the kernels for the host and launches them as a GPU's are launched.

The machine (fibers, collectives) is compiled once, a header of types once for each set of flags,
and then each build of a kernel takes about a second. All of it is kept in a folder, named by
content. Needs g++ 12 or newer and the headers of the CUDA runtime and of CuPy, no GPU.
"""

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blockyard.cuda.sources import KERNELS_DIR, Build

__all__ = ["EmulatedKernel", "EmulatedLibrary", "EmulationError", "Schedule", "missing_tools"]

_HERE = Path(__file__).resolve().parent
_MACHINE = ("fibers.cpp", "collectives.cpp", "warpgroup.cpp")
_COMPILER = "g++"
_FLAGS = ("-std=c++20", "-g1", "-march=native", "-fPIC", "-w", "-DBY_EMULATED=1")
_SANITIZERS = {
    "": (),
    "address": ("-fsanitize=address", "-fsanitize-recover=address"),
    "thread": ("-fsanitize=thread",),
}
_ORDERS = {"forward": 0, "reverse": 1, "random": 2}
_LANDINGS = {"eager": 0, "lazy": 1, "random": 2}


class EmulationError(Exception):
    """A kernel did not compile for the host, or did something that no GPU would allow."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the emulation decides by chance or by rule; the same schedule gives the same run.

    Attributes:
        order: of threads between barriers and of blocks: `forward`, `reverse` or `random`.
        landing: of asynchronous copies: when issued (`eager`), when waited for (`lazy`) or either
            (`random`).
        seed: of both.
    """

    order: str = "random"
    landing: str = "random"
    seed: int = 0


def missing_tools() -> str | None:
    """Why kernels cannot be built for the host on this machine, or None."""
    if shutil.which(_COMPILER) is None:
        return f"{_COMPILER} is not installed"
    if not any((folder / "cuda_fp8.h").exists() for folder in _include_folders()):
        return "the CUDA runtime's headers are not installed (pip install nvidia-cuda-runtime)"
    if not any((folder / "nv" / "target").exists() for folder in _include_folders()):
        return "CuPy's headers are not installed (pip install cupy-cuda13x)"
    return None


class EmulatedLibrary:
    """Kernels on the host's memory; see `KernelLibrary`.

    Args:
        cache_dir: where what was built is kept.
        schedule: how threads and copies are ordered; changed by assignment.
        sanitizer: `address` or `thread`; the process must run under its preloaded library.
    """

    def __init__(
        self, cache_dir: Path, schedule: Schedule | None = None, sanitizer: str = ""
    ) -> None:
        self.schedule = schedule if schedule is not None else Schedule()
        self._cache_dir = cache_dir
        self._sanitizer = sanitizer
        self._kernels: dict[tuple[Build, str], EmulatedKernel] = {}

    def kernel(self, build: Build, name: str) -> "EmulatedKernel":
        """The kernel `name` of a build, compiled when first asked for.

        Raises:
            EmulationError: it does not compile.
        """
        found = self._kernels.get((build, name))
        if found is None:
            library = ctypes.CDLL(str(self.compile(build)))
            for each in build.kernels:
                self._kernels[build, each] = EmulatedKernel(self, library, build, each)
            found = self._kernels[build, name]
        return found

    def compile(self, build: Build) -> Path:
        """Compile a build, or find it in the cache, without loading it.

        Raises:
            EmulationError: it does not compile.
        """
        flags = [*_FLAGS, *(f"-isystem{folder}" for folder in _include_folders())]
        sanitize = _SANITIZERS[self._sanitizer]
        machine = [self._once([*flags, "-O2", "-c", str(_HERE / name)], ".o") for name in _MACHINE]
        header = _HERE / "emulation.hpp"
        compiled = self._once(
            [*flags, "-O1", *sanitize, "-x", "c++-header", str(header)], ".pch/emulation.hpp.gch"
        )
        # A precompiled header stands for the file beside it, which serves where it cannot.
        _write(compiled.with_suffix(""), f'#include "{header}"\n')
        exports = "".join(f"EMU_EXPORT({name})\n" for name in build.kernels)
        unit = f'#include "emulation.hpp"\n#include "{build.source}"\n{exports}'
        name = hashlib.sha256(unit.encode()).hexdigest()[:12]
        source = self._cache_dir / f"{name}.cpp"
        _write(source, unit)
        return self._once(
            [
                *flags,
                "-O1",
                *sanitize,
                "-shared",
                f"-I{compiled.parent}",
                f"-I{_HERE}",
                f"-I{KERNELS_DIR}",
                *(f"-D{name}={value}" for name, value in build.defines),
                str(source),
                *map(str, machine),
            ],
            ".so",
            build.digest(),
        )

    def _once(self, command: list[str], suffix: str, also: str = "") -> Path:
        """Run a compilation unless its output, named by command and inputs, is there."""
        content = hashlib.sha256("\0".join((*command, also)).encode())
        for path in sorted(_HERE.glob("*.?pp")):
            content.update(path.read_bytes())
        output = self._cache_dir / f"{content.hexdigest()[:24]}{suffix}"
        if output.exists():
            return output
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = output.with_name(f"{output.name}.{_writer()}")
        ran = subprocess.run(
            [_COMPILER, *command, "-o", str(partial)], capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise EmulationError(f"{' '.join(command)}\n{ran.stderr[:4000]}")
        partial.replace(output)
        return output


class EmulatedKernel:
    """One kernel; see `Kernel`."""

    def __init__(
        self, owner: EmulatedLibrary, library: ctypes.CDLL, build: Build, name: str
    ) -> None:
        self.arguments = build.kernels[name]
        self._owner = owner
        self._error = library.emu_last_error
        self._error.restype = ctypes.c_char_p
        self._run = getattr(library, f"emu_{name}")
        self._run.argtypes = (
            *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
            *(ctypes.c_int, ctypes.c_int, ctypes.c_uint64),
        )

    def __call__(
        self, grid: int, block: int, arguments: npt.NDArray[np.void], shared_bytes: int = 0
    ) -> None:
        """Run the kernel; it has ended when this returns.

        Raises:
            EmulationError: the kernel did what no GPU allows; the message names file and line.
        """
        shape = (ctypes.c_int * 6)(grid, 1, 1, block, 1, 1)
        pointers = (ctypes.c_void_p * 1)(arguments.ctypes.data)
        schedule = self._owner.schedule
        failed = self._run(
            shape,
            shared_bytes,
            pointers,
            _ORDERS[schedule.order],
            _LANDINGS[schedule.landing],
            schedule.seed,
        )
        if failed:
            raise EmulationError(self._error().decode())


def _include_folders() -> list[Path]:
    """Headers of CUDA's number types, and of libcudacxx which they include."""
    wanted = (
        ("nvidia", "cu13/include"),
        ("cupy", "_core/include/cupy/_cccl/libcudacxx"),
    )
    folders = []
    for package, below in wanted:
        spec = importlib.util.find_spec(package)  # does not import the package
        for root in (spec.submodule_search_locations or ()) if spec else ():
            folders.append(Path(root) / below)
    home = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")
    folders += [home / "include", home / "include" / "cccl"]
    return [folder for folder in folders if folder.is_dir()]


def _writer() -> str:
    """Names who writes: threads of several processes may build the same."""
    return f"{os.getpid()}-{threading.get_ident()}"


def _write(path: Path, text: str) -> None:
    """Write a small file so that others see it whole."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{_writer()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
