"""Draws memory over time, one panel for each allocator, with matplotlib (the extra `plot`).

Bands stack up to the whole memory: tokens at the bottom, then each waste, then what is free.
Units: seconds across, shares of all slots upward.
"""

from pathlib import Path

from blockyard.cluster.capacity.plot_file import BANDS
from blockyard.cluster.capacity.replay_report import ReplayAnswer

__all__ = ["write_plot"]


def write_plot(path: Path, answer: ReplayAnswer) -> None:
    """Draw what `answer` holds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    total = answer.report["setup"]["slots"]
    names = list(answer.memory)
    figure = Figure(figsize=(10, 1.2 + 2.3 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for panel, name in zip(panels, names, strict=True):
        points = answer.memory[name]
        figures = answer.report["allocators"][name]
        panel.stackplot(
            [seconds for seconds, _ in points],
            [[getattr(state, band) / total for _, state in points] for band, _, _ in BANDS],
            labels=[label for _, label, _ in BANDS],
            colors=[color for _, _, color in BANDS],
            linewidth=0,
        )
        panel.set_title(
            f"{name}: {figures['mean_running']:,.0f} requests running on average, "
            f"{figures['pool_filled_ratio']:.0%} of memory holds tokens",
            loc="left",
            fontsize=10,
        )
        panel.set_ylim(0, 1)
        panel.margins(x=0)
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        panel.set_ylabel("KV memory")
    panels[-1].set_xlabel("simulated seconds")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path.expanduser(), dpi=120)
