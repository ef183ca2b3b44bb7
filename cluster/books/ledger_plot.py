"""Draws a running cluster's memory, at one moment or over time, beside contiguous servers.

Each panel is one way to give the same memory out, over all groups: blocks as they are, and the
contiguous servers that the ledger models. Takes the messages that clients get. Units: shares of
all slots upward, seconds across.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from blockyard.cluster.capacity.plot_file import BANDS
from blockyard.scheduler.simulated.memory_timeline import SlotState

__all__ = ["LedgerHistory"]

_MOST_POINTS = 2048
"""When there are more, every other one is dropped: a watch may go on for days."""


class LedgerHistory:
    """The books at moments, as many as one picture can show."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._states: dict[str, list[SlotState]] = {}
        self._skip = 1
        self._seen = 0

    def add(self, seconds: float, response: Any) -> None:
        """The books at a moment, as a `LedgerResponse`; none while no group is up."""
        self._seen += 1
        if not response.groups or (self._seen - 1) % self._skip:
            return
        states = _states(response.groups)
        self._seconds.append(seconds)
        for name, state in states.items():
            # A server that joins later had nothing before.
            missing = len(self._seconds) - 1 - len(self._states.setdefault(name, []))
            self._states[name] += [SlotState(0, 0, 0, 0, 0, 0, 0)] * missing
            self._states[name].append(state)
        if len(self._seconds) >= _MOST_POINTS:
            self._skip *= 2
            self._seconds = self._seconds[::2]
            self._states = {name: states[::2] for name, states in self._states.items()}

    def __len__(self) -> int:
        """Moments that are kept."""
        return len(self._seconds)

    def write(self, path: Path) -> None:
        """Draw all of it.

        Raises:
            ValueError: there is nothing to draw: no group was up.
        """
        from matplotlib.figure import Figure
        from matplotlib.ticker import PercentFormatter

        if not self._seconds:
            raise ValueError("no group was up, so there is nothing to draw")
        names = list(self._states)
        figure = Figure(figsize=(10, 1.2 + 2.3 * len(names)), layout="constrained")
        panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
        # One moment is drawn as a stretch of it.
        seconds = self._seconds if len(self) > 1 else [0.0, 1.0]
        for panel, name in zip(panels, names, strict=True):
            states = self._states[name] if len(self) > 1 else self._states[name] * 2
            totals = [sum(state) - state.running or 1 for state in states]
            panel.stackplot(
                seconds,
                [
                    [getattr(s, band) / total for s, total in zip(states, totals, strict=True)]
                    for band, _, _ in BANDS
                ],
                labels=[label for _, label, _ in BANDS],
                colors=[color for _, _, color in BANDS],
                linewidth=0,
            )
            last = states[-1]
            panel.set_title(
                f"{name}: {last.running:,.0f} requests running at the end, "
                f"{last.filled / totals[-1]:.0%} of memory holds tokens",
                loc="left",
                fontsize=10,
            )
            panel.set_ylim(0, 1)
            panel.margins(x=0)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))
            panel.set_ylabel("KV memory")
        if len(self) > 1:
            panels[-1].set_xlabel("seconds")
        else:
            panels[-1].set_xticks([])
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9
        )
        figure.savefig(path.expanduser(), dpi=120)


def _states(groups: Iterable[Any]) -> dict[str, SlotState]:
    """Where all groups' slots are: in blocks, and with each contiguous server."""
    sums: dict[str, SlotState] = {}

    def add(name: str, state: SlotState) -> None:
        so_far = sums.get(name, SlotState(0, 0, 0, 0, 0, 0, 0))
        sums[name] = SlotState(*(a + b for a, b in zip(so_far, state, strict=True)))

    for group in groups:
        blocks, slots, size = group.blocks, group.slots, group.block_size
        add(
            "blocks",
            SlotState(
                filled=slots.filled,
                reserved=slots.promised,
                internal=slots.empty_tail,
                cached=blocks.cached * size,
                external=0,
                free=(blocks.free + blocks.fenced) * size,
                running=group.requests.running,
            ),
        )
        for server in group.contiguous:
            add(
                f"contiguous({server.policy})",
                SlotState(
                    filled=server.filled,
                    reserved=server.reservation,
                    internal=server.internal,
                    cached=0,
                    external=server.free - server.largest_hole,
                    free=server.largest_hole,
                    running=server.running,
                ),
            )
    return sums
