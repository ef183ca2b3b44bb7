"""Draws a load with matplotlib (the extra `plot`): tokens a second, and how long people waited.

Units: seconds across at the top, milliseconds across below.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockyard.cluster.benchmark.load_endpoint import Outcome

__all__ = ["write_load_plot"]

_MOST_BARS = 120


def write_load_plot(path: Path, outcomes: Sequence[Outcome], title: str) -> None:
    """Draw throughput over time above the distributions of waits."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    over_time, waits = figure.subplots(2, 1)
    _draw_throughput(over_time, outcomes)
    over_time.set_title(title, loc="left", fontsize=10)
    firsts = [outcome.first_token_seconds for outcome in outcomes if not outcome.error]
    gaps = [gap for outcome in outcomes if not outcome.error for gap in outcome.gaps()]
    for label, color, values in (
        ("to the first token", "#e07b39", sorted(first for first in firsts if first is not None)),
        ("between tokens", "#1f6f4a", sorted(gaps)),
    ):
        if values:
            shares = [(rank + 1) / len(values) for rank in range(len(values))]
            waits.plot([1e3 * value for value in values], shares, color=color, label=label)
    waits.set_xscale("symlog", linthresh=1.0)
    waits.set_xlabel("milliseconds")
    waits.set_ylabel("that short or shorter")
    waits.set_ylim(0, 1)
    waits.yaxis.set_major_formatter(PercentFormatter(1.0))
    waits.grid(alpha=0.3)
    waits.legend(frameon=False, loc="lower right")
    figure.savefig(path.expanduser(), dpi=120)


def _draw_throughput(panel: Any, outcomes: Sequence[Outcome]) -> None:
    pieces = [piece for outcome in outcomes for piece in outcome.pieces]
    end = max((outcome.ended for outcome in outcomes), default=0.0) or 1.0
    width = max(end / _MOST_BARS, 0.05)
    bars = [0.0] * (int(end / width) + 1)
    for when, count in pieces:
        bars[int(when / width)] += count / width
    at = [width * number for number in range(len(bars))]
    panel.fill_between(at, bars, step="post", color="#a9cfe8")
    panel.set_xlabel("seconds")
    panel.set_ylabel("output tokens a second")
    panel.margins(x=0)
    panel.set_ylim(bottom=0)
