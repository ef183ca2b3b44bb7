"""The kernels' sources: what one build of a source is, which kernels it has, what they take.

A kernel takes one struct by value. Its layout is read from the source, which is the only place
where it is written down. Compiles nothing; units: bytes.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

__all__ = ["KERNELS_DIR", "Build", "SourceError"]

KERNELS_DIR = Path(__file__).resolve().parent / "kernels"

_KERNEL = re.compile(
    r'extern "C" __global__ void __launch_bounds__\([^)]*\)\s*'
    r"(\w+)\(const __grid_constant__ (?:\w+::)?(\w+) \w+\)"
)
_INCLUDE = re.compile(r'^#include "([\w.]+)"', re.MULTILINE)
_FIELD = re.compile(r"(const )?([\w:]+)\s*(\*?)\s*(\w+)(?:\[(\d+)\])?;")
_TYPES = {"int": "i4", "float": "f4", "int64_t": "i8", "uint64_t": "u8", "uint32_t": "u4"}


class SourceError(Exception):
    """A kernel's source cannot be used; the message says why."""


@dataclass(frozen=True)
class Build:
    """One source with its compile-time constants.

    Attributes:
        source: file name in `cuda/kernels/`.
        defines: names and values of macros.
    """

    source: str
    defines: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, source: str, **defines: int) -> "Build":
        """A build with these macros."""
        return cls(source, tuple(sorted((name, int(value)) for name, value in defines.items())))

    def __str__(self) -> str:
        """For people: the source and its macros."""
        return " ".join([self.source, *(f"{name}={value}" for name, value in self.defines)])

    def with_defines(self, **defines: int) -> "Build":
        """The same with some macros added or changed."""
        return Build.of(self.source, **(dict(self.defines) | defines))

    @property
    def path(self) -> Path:
        """Where the source is."""
        return KERNELS_DIR / self.source

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The source and all of ours that it includes, in a fixed order."""
        found = {self.path: self.path.read_text(encoding="utf-8")}
        waiting = [self.path]
        while waiting:
            for name in _INCLUDE.findall(found[waiting.pop()]):
                path = KERNELS_DIR / name
                if path not in found and path.exists():
                    found[path] = path.read_text(encoding="utf-8")
                    waiting.append(path)
        return tuple(sorted(found))

    def digest(self, *also: str) -> str:
        """Names this build by content: its macros, its source, all it includes, and `also`."""
        content = hashlib.sha256("\0".join((str(self), *also)).encode())
        for path in self.files:
            content.update(path.name.encode() + b"\0" + path.read_bytes())
        return content.hexdigest()[:32]

    @cached_property
    def kernels(self) -> dict[str, np.dtype[np.void]]:
        """The kernels of the source, each with the layout of the struct it takes.

        Raises:
            SourceError: a struct has a field that is not understood.
        """
        texts = [path.read_text(encoding="utf-8") for path in self.files]
        source = self.path.read_text(encoding="utf-8")
        return {
            kernel: _struct(struct, "\n".join(texts)) for kernel, struct in _KERNEL.findall(source)
        }


def _struct(name: str, text: str) -> np.dtype[np.void]:
    """Layout of a C struct of pointers and plain numbers, aligned as C does."""
    found = re.search(rf"struct {name} \{{(.*?)\n\}};", text, re.DOTALL)
    if found is None:
        raise SourceError(f"struct {name} is not in the source or its headers")
    fields: list[tuple[str, str, int]] = []
    for line in found[1].splitlines():
        code = line.partition("//")[0].strip()
        if not code:
            continue
        field = _FIELD.fullmatch(code)
        if field is None or (not field[3] and field[2] not in _TYPES):
            raise SourceError(f"struct {name}: cannot read {code!r}")
        fields.append((field[4], "u8" if field[3] else _TYPES[field[2]], int(field[5] or 1)))
    return np.dtype(
        [(name, kind) if n == 1 else (name, kind, (n,)) for name, kind, n in fields], align=True
    )
