"""What a replay remembers of what happened: sums, histograms and a timeline, all of fixed size.

Knows nothing of schedulers. Units: simulated seconds, tokens, slots, requests.
"""

from dataclasses import dataclass, field
from typing import Any

from blockyard.scheduler.simulated.histogram import Histogram
from blockyard.scheduler.simulated.memory_timeline import MemoryTimeline, SlotState

__all__ = ["ReplayRecords", "RequestTimes"]


class RequestTimes:
    """What is known of a request that is being served: when it came and when its last token did."""

    __slots__ = ("arrived", "last_token", "output_tokens")

    def __init__(self, arrived: float, output_tokens: int) -> None:
        self.arrived = arrived
        self.output_tokens = output_tokens
        self.last_token: float | None = None


@dataclass(slots=True)
class ReplayRecords:
    """One allocator's replay. Groups add to it as their simulated time goes on."""

    refused: int = 0
    finished: int = 0
    output_tokens: int = 0
    """Of requests that finished."""
    simulated_seconds: float = 0.0
    """End of the last step."""
    running: int = 0
    peak_running: int = 0
    peak_held_slots: int = 0
    """Most slots in allocated units at once in one group."""
    first_token: Histogram = field(default_factory=Histogram)
    """Seconds from arrival to the first token."""
    between_tokens: Histogram = field(default_factory=Histogram)
    """Seconds from a request's token to its next."""
    memory: MemoryTimeline = field(default_factory=MemoryTimeline)
    measured_until: float | None = None
    """Memory is not looked at after this moment; None: to the end."""
    _slot_seconds: list[float] = field(default_factory=lambda: [0.0] * len(SlotState._fields))

    def hold(self, begin: float, end: float, integral: SlotState) -> None:
        """One group's memory between two moments, integrated over time."""
        until = self.measured_until
        if until is not None and end > until:
            integral = integral.times(max(0.0, until - begin) / (end - begin))
            end = until
        if end <= begin:
            return
        self.memory.add(begin, end, integral)
        sums = self._slot_seconds
        for index, value in enumerate(integral):
            sums[index] += value

    def count_running(self, change: int) -> None:
        """So many more requests hold memory, over all groups."""
        self.running += change
        if self.measured_until is None and self.running > self.peak_running:
            self.peak_running = self.running

    @property
    def slot_seconds(self) -> SlotState:
        """Integrals over the measured time, summed over groups."""
        return SlotState(*self._slot_seconds)

    @property
    def measured_seconds(self) -> float:
        """How long memory was looked at."""
        return self.simulated_seconds if self.measured_until is None else self.measured_until

    def to_json(self) -> dict[str, Any]:
        """Figures by name. Ratios weigh by time; absent times (nobody got a token) are None."""
        held = self.slot_seconds
        allocated = held.filled + held.reserved + held.internal
        span = self.measured_seconds
        # Of the groups that were there: sums over all states are all slots.
        whole = sum(held) - held.running
        seconds = self.simulated_seconds
        return {
            "filled_ratio": held.filled / allocated if allocated else 0.0,
            "pool_filled_ratio": held.filled / whole if whole else 0.0,
            "peak_running": self.peak_running,
            "mean_running": held.running / span if span else 0.0,
            "peak_held_slots": self.peak_held_slots,
            "refused": self.refused,
            "finished": self.finished,
            "ttft_s": _percentiles(self.first_token),
            "inter_token_s": _percentiles(self.between_tokens),
            "output_tokens_per_s": self.output_tokens / seconds if seconds else 0.0,
            "requests_per_s": self.finished / seconds if seconds else 0.0,
            "slots_ratio": {
                name: getattr(held, name) / whole if whole else 0.0
                for name in SlotState._fields
                if name != "running"
            },
            "simulated_s": seconds,
            "measured_s": span,
        }


def _percentiles(histogram: Histogram) -> dict[str, float | None]:
    return {
        "p50": histogram.quantile(0.5),
        "p90": histogram.quantile(0.9),
        "p99": histogram.quantile(0.99),
    }
