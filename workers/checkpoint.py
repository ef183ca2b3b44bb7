"""The tensors of a model directory's safetensors, read when they are asked for, whole or in part.

Whole tensors are mapped: they take no memory of their own until somebody writes to them. Parts are
read from the file, so that no other part of it ever counts as this process's memory. Linears that
are packed are unpacked whole, one at a time. Knows no model. Units: bytes.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from blockyard.workers.description import ModelFilesError
from blockyard.workers.packed_linears import Packing
from blockyard.workers.partition import Span
from blockyard.workers.progress import ProgressReporter

__all__ = ["Checkpoint", "CheckpointTensor", "Slice"]

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a whole tensor.

    Attributes:
        dim: the dimension that is divided.
        spans: what is kept of it, joined in order.
        length: what the part has there; what is more than the spans have is filled with zeros.
        blank: zeros stand in for all of it, in the shape of the whole.
    """

    dim: int
    spans: tuple[Span, ...]
    length: int
    blank: bool = False


class CheckpointTensor:
    """One tensor, read by `tensor[...]`: the form in which transformers asks for it."""

    def __init__(self, checkpoint: "Checkpoint", name: str) -> None:
        self._checkpoint = checkpoint
        self._name = name

    def __getitem__(self, index: object) -> torch.Tensor:
        """The tensor, or the part of it that this rank keeps."""
        if index is not Ellipsis:
            raise IndexError(f"{self._name} is read by [...] alone, not by {index!r}")
        return self._checkpoint.read(self._name)


class Checkpoint:
    """All tensors of a directory; a context manager.

    Attributes:
        total_bytes: size of the files.

    Args:
        directory: holds the files.
        progress: told of the bytes of files that are done with.
        packing: how linears are packed; None: they are not.

    Raises:
        ModelFilesError: a file is missing or damaged.
    """

    def __init__(
        self, directory: Path, progress: ProgressReporter, packing: Packing | None = None
    ) -> None:
        self._progress = progress
        self._packing = packing
        self._lock = Lock()
        self._done_bytes = 0
        self._slice_of: Callable[[str], Slice | None] = lambda name: None
        self._mapped: dict[str, Any] = {}
        self._read: dict[str, Any] = {}
        self._stack = ExitStack()
        paths = _files(directory)
        try:
            self.total_bytes = sum(path.stat().st_size for path in paths)
            for path in paths:
                mapped = self._stack.enter_context(safe_open(path, framework="pt"))
                read = self._stack.enter_context(safe_open(path, framework="pt", backend="pread"))
                for name in mapped.keys():  # noqa: SIM118  # it is no mapping
                    self._mapped[name], self._read[name] = mapped, read
        except (OSError, SafetensorError) as error:
            self._stack.close()
            raise ModelFilesError(f"the weights in {directory} cannot be read: {error}") from error
        self._parts_of = self._find_packed()

    def __enter__(self) -> "Checkpoint":
        """Itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the files; tensors that were read stay."""
        if exception[0] is not None:
            # Threads of transformers may be reading still: files close when the last one has ended.
            self._stack.pop_all()
            return
        self._stack.close()
        # What is no tensor, or of none that the model has.
        self._progress.advance(max(0, self.total_bytes - self._done_bytes))

    def tensors(self) -> dict[str, CheckpointTensor]:
        """Every tensor by name, unread."""
        packed = {part for parts in self._parts_of.values() for part in parts.values()}
        names = [*(name for name in self._mapped if name not in packed), *self._parts_of]
        return {name: CheckpointTensor(self, name) for name in names}

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        if name in self._parts_of and self._packing is not None:
            first = self._parts_of[name][self._packing.parts[0]]
            return self._packing.shape(self.shape(first))
        return tuple(self._mapped[name].get_slice(name).get_shape())

    def keep(self, slices: Callable[[str], Slice | None]) -> None:
        """From now on read of each tensor the part that `slices` says, None being all."""
        self._slice_of = slices

    def read(self, name: str) -> torch.Tensor:
        """A tensor, or the part of it that is kept."""
        part = self._slice_of(name)
        if name in self._parts_of:
            return self._unpack(name, part)
        if part is None:
            tensor: torch.Tensor = self._mapped[name].get_tensor(name)
            whole_bytes = tensor.nbytes
        else:
            tensor = _part(self._read[name].get_slice(name), part)
            kept = tensor.shape[part.dim] or 1
            whole_bytes = tensor.nbytes // kept * self.shape(name)[part.dim]
        self._advance(whole_bytes)
        return tensor

    def _unpack(self, name: str, part: Slice | None) -> torch.Tensor:
        assert self._packing is not None
        parts = {
            kind: self._mapped[tensor].get_tensor(tensor)
            for kind, tensor in self._parts_of[name].items()
        }
        try:
            whole = self._packing.unpack(parts)
        except (KeyError, RuntimeError, IndexError) as error:
            raise ModelFilesError(f"{name} is not packed as the config says: {error}") from error
        self._advance(sum(tensor.nbytes for tensor in parts.values()))
        return whole if part is None else _part(whole, part).clone()

    def _find_packed(self) -> dict[str, dict[str, str]]:
        """By the name of a weight, the tensors that stand for it."""
        found: dict[str, dict[str, str]] = {}
        if self._packing is None:
            return found
        for name in self._mapped:
            owner, _, kind = name.rpartition(".")
            # Who is one part of several: a norm has no `qweight` beside what it has.
            if kind in self._packing.parts and f"{owner}.{self._packing.parts[0]}" in self._mapped:
                found.setdefault(f"{owner}.weight", {})[kind] = name
        return found

    def _advance(self, num_bytes: int) -> None:
        with self._lock:
            self._done_bytes += num_bytes
            self._progress.advance(num_bytes)


def _part(source: Any, part: Slice) -> torch.Tensor:
    """A part of a tensor, or of what reads one from a file."""
    shape = list(source.shape if isinstance(source, torch.Tensor) else source.get_shape())
    nothing: torch.Tensor = source[0:0]  # for its dtype
    if part.blank:
        return nothing.new_zeros(shape)
    before = (slice(None),) * part.dim
    # A span that is empty may lie past the end.
    pieces = [source[(*before, slice(span.start, span.stop))] for span in part.spans if len(span)]
    missing = part.length - sum(len(span) for span in part.spans)
    if missing or not pieces:
        shape[part.dim] = missing
        pieces.append(nothing.new_zeros(shape))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=part.dim)


def _files(directory: Path) -> list[Path]:
    """The files that make up the checkpoint: those of the index, or all."""
    index = directory / INDEX
    if not index.exists():
        return sorted(directory.glob("*.safetensors"))
    try:
        weights: Mapping[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [directory / name for name in sorted(set(weights.values()))]
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelFilesError(f"{index} is not an index of weights: {error!r}") from error
