"""Small sums about waste that need no model of a server: a static batch, a hole, a shared prefix.

Each takes plain numbers and returns a frozen answer. Units: tokens, iterations, bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "BatchWork",
    "HoleCase",
    "SharedPrefix",
    "hole_case",
    "share_prefix",
    "static_batch_work",
]


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Decode work of one batch. `computed` counts a place in the batch in one iteration as one."""

    iterations: int
    useful: int
    computed: int

    @property
    def useful_ratio(self) -> float:
        """Share of the work that made a token somebody asked for."""
        return self.useful / self.computed


def static_batch_work(output_lengths: Sequence[int]) -> BatchWork:
    """Work of a batch in which every request waits for the longest.

    Continuous batching gives a place away when its request ends: while requests wait, all of its
    work is useful.

    Raises:
        ValueError: no outputs, or one below 1.
    """
    if not output_lengths or min(output_lengths) < 1:
        raise ValueError("give the length of at least one output; each must be at least 1 token")
    longest = max(output_lengths)
    return BatchWork(longest, sum(output_lengths), longest * len(output_lengths))


@dataclass(frozen=True, slots=True)
class HoleCase:
    """A request against free memory with holes. None: how much is free in all is not known."""

    free_bytes: int | None
    largest_hole_bytes: int
    request_bytes: int

    @property
    def external_fragmentation(self) -> float | None:
        """`1 - largest_free / total_free`."""
        if self.free_bytes is None:
            return None
        return 1 - self.largest_hole_bytes / self.free_bytes if self.free_bytes else 0.0

    @property
    def contiguous_serves(self) -> bool:
        """Whether the request fits into the largest hole."""
        return self.request_bytes <= self.largest_hole_bytes

    @property
    def blocks_serve(self) -> bool | None:
        """Whether the request fits into all free memory together."""
        if self.contiguous_serves:
            return True
        return None if self.free_bytes is None else self.request_bytes <= self.free_bytes


def hole_case(free_bytes: int | None, largest_hole_bytes: int, request_bytes: int) -> HoleCase:
    """Check the three figures against one another.

    Raises:
        ValueError: a hole larger than all that is free, or a figure below 0.
    """
    if min(largest_hole_bytes, request_bytes, free_bytes or 0) < 0:
        raise ValueError("free memory, hole and request cannot be negative")
    if free_bytes is not None and largest_hole_bytes > free_bytes:
        raise ValueError(
            f"the largest hole ({largest_hole_bytes:,} B) is more than all free memory "
            f"({free_bytes:,} B); swap --free and --largest-hole?"
        )
    return HoleCase(free_bytes, largest_hole_bytes, request_bytes)


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A prompt that many requests begin with, stored once where it fills whole blocks."""

    tokens: int
    shared_tokens: int
    requests: int
    stored_bytes: int
    unshared_bytes: int

    @property
    def saved_bytes(self) -> int:
        """What sharing saves."""
        return self.unshared_bytes - self.stored_bytes


def share_prefix(
    tokens: int, requests: int, block_size: int, kv_bytes_per_token: int
) -> SharedPrefix:
    """Memory of a common prefix of `tokens` under `requests` requests.

    Only whole blocks are shared; the rest of the prefix lies in each request's own block.
    """
    if tokens < 1 or requests < 1:
        raise ValueError(
            f"a shared prefix of {tokens} tokens under {requests} requests saves nothing; "
            "both must be at least 1"
        )
    shared = tokens // block_size * block_size
    stored_tokens = shared + (tokens - shared) * requests
    return SharedPrefix(
        tokens=tokens,
        shared_tokens=shared,
        requests=requests,
        stored_bytes=stored_tokens * kv_bytes_per_token,
        unshared_bytes=tokens * requests * kv_bytes_per_token,
    )
