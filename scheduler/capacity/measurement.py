"""What a running server's counts say of its KV memory, and of a contiguous server in its place.

Takes counts that somebody else measured. Units: tokens, requests, ratios from 0 to 1.
"""

from dataclasses import dataclass

from blockyard.scheduler.capacity.verdict import Verdict, give_verdict
from blockyard.scheduler.config import DEFAULT_BLOCK_SIZE

__all__ = ["ContiguousLoad", "Load", "Measurement", "measure_load"]

_SHORT = 0.6
_BUSY = 0.8


@dataclass(frozen=True, slots=True)
class Load:
    """What a server was seen to do.

    Attributes:
        capacity_tokens: tokens its KV memory can hold.
        running: requests running at once, on average.
        mean_length: tokens that a running request holds at a moment, on average.
        limit: longest request it takes.
        used_tokens: tokens its memory holds; None means `running * mean_length`. Fewer where
            requests share a prefix.
        p99_length: only one request in a hundred ends longer; None if not known.
        waiting: requests in its queue; None if not known.
    """

    capacity_tokens: int
    running: float
    mean_length: float
    limit: int
    used_tokens: float | None = None
    p99_length: float | None = None
    waiting: float | None = None

    def __post_init__(self) -> None:
        """Refuse counts that no server has."""
        for name in ("capacity_tokens", "limit", "mean_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name):g}; it must be at least 1")
        if self.running <= 0:
            raise ValueError("no request ran; measure while the server works")
        if self.mean_length > self.limit:
            raise ValueError(
                f"requests hold {self.mean_length:,.0f} tokens on average, more than the limit of "
                f"{self.limit:,}; check --max-seq-len"
            )
        if self.held_tokens > self.capacity_tokens * 1.001:
            raise ValueError(
                f"{self.held_tokens:,.0f} tokens are held but the capacity is "
                f"{self.capacity_tokens:,}; check --capacity-tokens"
            )

    @property
    def held_tokens(self) -> float:
        """Tokens that lie in the memory."""
        return self.running * self.mean_length if self.used_tokens is None else self.used_tokens


@dataclass(frozen=True, slots=True)
class ContiguousLoad:
    """The same load on a server that reserves the limit for every request."""

    concurrency: int
    running: float
    reserved_tokens: float
    idle_tokens: float
    reservation_waste: float
    pool_filled_ratio: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured. `blocks_concurrency` is how many such requests blocks would hold."""

    used_tokens: float
    utilisation: float
    contiguous: ContiguousLoad
    blocks_concurrency: int
    busy: bool
    verdict: Verdict


def measure_load(load: Load, block_size: int = DEFAULT_BLOCK_SIZE) -> Measurement:
    """Judge a load, and put a contiguous server in its place."""
    concurrency = load.capacity_tokens // load.limit
    running = min(float(concurrency), load.running)
    contiguous = ContiguousLoad(
        concurrency=concurrency,
        running=running,
        reserved_tokens=running * load.limit,
        idle_tokens=running * (load.limit - load.mean_length),
        reservation_waste=1 - load.mean_length / load.limit,
        pool_filled_ratio=running * load.mean_length / load.capacity_tokens,
    )
    # A request's last block is half empty on average.
    blocks = int(load.capacity_tokens / (load.mean_length + (block_size - 1) / 2))
    utilisation = load.held_tokens / load.capacity_tokens
    # The p99 length is at least the mean: that much is known without a distribution.
    p99 = load.p99_length
    if p99 is None and load.mean_length >= _SHORT * load.limit:
        p99 = load.mean_length
    gain = blocks / concurrency if concurrency else None
    return Measurement(
        used_tokens=load.held_tokens,
        utilisation=utilisation,
        contiguous=contiguous,
        blocks_concurrency=blocks,
        busy=bool(load.waiting)
        or max(load.running * load.limit, load.held_tokens) >= _BUSY * load.capacity_tokens,
        verdict=give_verdict(utilisation, p99, load.limit, gain=gain),
    )
