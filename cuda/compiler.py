"""Compiles kernels with the NVRTC that CuPy brings, with or without a GPU, and keeps the results.

What was compiled lies in a folder, named by the content of the source, of every header of ours it
includes, its macros, the architecture and the compilers' versions: CuPy's own cache does not see
headers. Files are loaded by path, which is the documented way to run code for `sm_90a`.
Units: bytes, registers a thread.
"""

import io
import json
import multiprocessing
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blockyard.cuda.sources import KERNELS_DIR, Build

__all__ = [
    "CompileError",
    "Compiler",
    "Cubin",
    "Resources",
    "compile_all",
    "default_cache_dir",
    "missing_compiler",
]

_ENTRY = re.compile(r"entry function '(\w+)'(.*?)(?=Compiling entry|\Z)", re.DOTALL)
_FRAME = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers",
    re.DOTALL,
)


class CompileError(Exception):
    """NVRTC refused a kernel; the message holds its log."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one thread of a kernel takes, as ptxas reports it."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled build: where it is, and what each of its kernels takes."""

    path: Path
    resources: dict[str, Resources]


def default_cache_dir() -> Path:
    """`BLOCKYARD_KERNEL_CACHE`, or a folder in the user's cache."""
    configured = os.environ.get("BLOCKYARD_KERNEL_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "blockyard" / "kernels"


def missing_compiler() -> str | None:
    """Why nothing can be compiled here, or None."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        return f"CuPy cannot load NVRTC (pip install 'blockyard[gpu]' has both): {error}"
    return None


class Compiler:
    """Compiles builds for one architecture.

    Args:
        arch: such as `90`, `90a` or `100`.
        cache_dir: where results are kept.
    """

    def __init__(self, arch: str, cache_dir: Path) -> None:
        self.arch = arch
        self._cache_dir = cache_dir

    def compile(self, build: Build) -> Cubin:
        """Compile a build, or find it in the cache.

        Raises:
            CompileError: the source does not compile.
        """
        path = self._cache_dir / f"{build.digest(self.arch, *_versions())}.cubin"
        facts = path.with_suffix(".json")
        if not facts.exists():
            binary, log = _nvrtc(build, self.arch)
            resources = _read_resources(log)
            _write(path, binary)
            _write(facts, json.dumps({k: asdict(v) for k, v in resources.items()}).encode())
        found = json.loads(facts.read_text(encoding="utf-8"))
        return Cubin(path, {name: Resources(**each) for name, each in found.items()})


def compile_all(
    jobs: Sequence[tuple[Build, str]], cache_dir: Path, processes: int
) -> Iterator[Cubin | CompileError]:
    """Compile builds, each for an architecture, in several processes; in the order of `jobs`.

    In processes, because NVRTC in threads of one loses its own files now and then.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        answers = [pool.submit(_compile_one, build, arch, cache_dir) for build, arch in jobs]
        for answer in answers:
            yield answer.result()


def _compile_one(build: Build, arch: str, cache_dir: Path) -> Cubin | CompileError:
    try:
        return Compiler(arch, cache_dir).compile(build)
    except CompileError as error:
        return error


def _versions() -> tuple[str, ...]:
    import cupy
    from cupy.cuda import nvrtc

    return (str(cupy.__version__), *map(str, nvrtc.getVersion()))


def _nvrtc(build: Build, arch: str) -> tuple[bytes, str]:
    """The cubin and ptxas's report."""
    # CuPy's public way asks for a device; these are the pieces that it puts together itself.
    from cupy._core import core
    from cupy.cuda import compiler

    options: Any = core.assemble_cupy_compiler_options(
        (
            "-std=c++17",
            f"-I{KERNELS_DIR}",
            "--ptxas-options=-v",
            *(f"-D{name}={value}" for name, value in build.defines),
        )
    )
    options += ("-ftz=true", f"-arch=sm_{arch}", "--device-as-default-execution-space")
    log = io.StringIO()
    text = build.path.read_text(encoding="utf-8")
    program = compiler._NVRTCProgram(text, build.source, method="cubin")
    try:
        binary, _ = program.compile(options, log)
    except compiler.CompileException as error:
        raise CompileError(f"{build} for sm_{arch}: {error}") from error
    # CuPy drops the last byte; the driver does not mind, tools that read the file do.
    return bytes(binary) + b"\0", log.getvalue()


def _read_resources(log: str) -> dict[str, Resources]:
    found = {}
    for name, text in _ENTRY.findall(log):
        numbers = _FRAME.search(text)
        if numbers is None:
            raise CompileError(f"ptxas says nothing of {name}:\n{log}")
        stack, stores, loads, registers = map(int, numbers.groups())
        found[name] = Resources(registers, stack, stores, loads)
    return found


def _write(path: Path, content: bytes) -> None:
    """Write a file so that others see it whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)
