"""Builds the C++ of `native/` on the machine that runs it, once, into a cache.

The same sources are compiled for the widest instructions that the processor has. A library is named
by a hash of its sources, its flags, the compiler and the processor's features, so that one built
elsewhere or earlier is never loaded by mistake. Does not know what is in it.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blockyard.cuda.compiler import default_cache_dir

__all__ = [
    "INSTRUCTIONS_VARIABLE",
    "INSTRUCTION_SETS",
    "Compiler",
    "InstructionSet",
    "NativeUnavailable",
    "build_library",
    "choose_instructions",
    "find_compiler",
    "processor_features",
]

SOURCES = Path(__file__).parent / "native"
COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    *("-std=c++20", "-O3", "-mtune=native"),
    *("-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
)
INSTRUCTIONS_VARIABLE = "BLOCKYARD_CPU_INSTRUCTIONS"
_MOST_BUILD_SECONDS = 600


class NativeUnavailable(Exception):
    """There is no native code on this machine; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """What native code is compiled for. `features` it needs as Linux names them."""

    name: str
    features: frozenset[str]

    @property
    def flags(self) -> tuple[str, ...]:
        """What has a compiler use it."""
        named = (_COMPILERS_NAMES.get(feature, feature) for feature in sorted(self.features))
        return tuple(f"-m{name}" for name in named)


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_COMPILERS_NAMES = {
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
    "avx512_bf16": "avx512bf16",
}
INSTRUCTION_SETS = (
    InstructionSet("amx", _AVX512 | _COMPILERS_NAMES.keys()),
    InstructionSet("avx512", _AVX512),
    InstructionSet("avx2", _AVX2),
)
"""From the fastest; each has all that the next ones have."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler. `version` is the first line of what it says of itself."""

    path: str
    version: str

    def knows(self, instructions: InstructionSet) -> bool:
        """Whether it can compile for them."""
        command = (self.path, *instructions.flags, "-x", "c++", "-fsyntax-only", os.devnull)
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def processor_features() -> frozenset[str]:
    """Feature flags of the processor, as Linux names them; empty where there are none to read."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return frozenset(flags.split())


def find_compiler() -> Compiler:
    """The compiler that `CXX` names, else the first known one.

    Raises:
        NativeUnavailable: there is none.
    """
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else COMPILERS:
        path = shutil.which(name)
        if path is None:
            continue
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if said.returncode == 0:
            return Compiler(path, said.stdout.partition("\n")[0].strip())
    tried = wanted or ", ".join(COMPILERS)
    raise NativeUnavailable(f"no C++ compiler ({tried}); install one (Debian, Ubuntu: g++)")


def choose_instructions(name: str | None = None) -> InstructionSet:
    """The instruction set `name`, else the one that the environment names, else the fastest here.

    Raises:
        NativeUnavailable: the processor lacks something, or there is none of that name.
    """
    wanted = name or os.environ.get(INSTRUCTIONS_VARIABLE)
    known = [one for one in INSTRUCTION_SETS if wanted in (None, "", one.name)]
    if not known:
        names = ", ".join(one.name for one in INSTRUCTION_SETS)
        raise NativeUnavailable(f"no native code is written for {wanted}, but for {names}")
    features = processor_features() if platform.machine() in ("x86_64", "AMD64") else frozenset()
    for one in known:
        if features >= one.features:
            return one
    lacking = ", ".join(sorted(known[-1].features - features))
    raise NativeUnavailable(f"this processor ({platform.machine()}) lacks {lacking}")


def build_library(
    cache_dir: Path | None = None,
    sources: Path = SOURCES,
    instructions: InstructionSet | None = None,
) -> Path:
    """The library, from the cache or built now; another process that builds it is waited for.

    Args:
        cache_dir: where libraries are kept; None means the default.
        sources: folder of `library.cpp` and what it includes.
        instructions: that it is compiled for; None means those of `choose_instructions`, or the
            next slower ones that the compiler knows.

    Raises:
        NativeUnavailable: the processor lacks something, or there is no compiler, or it fails.
    """
    chosen = instructions or choose_instructions()
    fit = [chosen] if instructions else INSTRUCTION_SETS[INSTRUCTION_SETS.index(chosen) :]
    folder = cache_dir if cache_dir is not None else default_cache_dir()
    stems = [f"cpu-{_fingerprint(sources, (*FLAGS, *one.flags))}" for one in fit]
    try:
        compiler = find_compiler()
    except NativeUnavailable:
        # As in an image that was built with a compiler and runs without.
        built = [path for stem in stems for path in sorted(folder.glob(f"{stem}-*.so"))]
        if not built:
            raise
        return built[0]
    told = hashlib.sha256(f"{compiler.path} {compiler.version}".encode()).hexdigest()[:8]
    for one, stem in zip(fit, stems, strict=True):
        library = folder / f"{stem}-{told}.so"
        if library.is_file():
            return library
        if compiler.knows(one):
            break
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.is_file():
                _compile(compiler, (*FLAGS, *one.flags), sources, library)
    except OSError as error:
        raise NativeUnavailable(f"{folder} cannot be written to: {error}") from error
    return library


def _compile(compiler: Compiler, flags: Sequence[str], sources: Path, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        built = Path(scratch) / library.name
        command = [compiler.path, *flags, str(sources / "library.cpp"), "-o", str(built)]
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_MOST_BUILD_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise NativeUnavailable(f"{compiler.path} took over {error.timeout:.0f} s") from error
        if ran.returncode:
            reason = next(
                (line for line in ran.stderr.splitlines() if "error" in line),
                f"exit code {ran.returncode}",
            )
            raise NativeUnavailable(f"{compiler.version} cannot build it: {reason}")
        os.replace(built, library)


def _fingerprint(sources: Path, flags: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(sources.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for part in (*flags, *sorted(processor_features())):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]
