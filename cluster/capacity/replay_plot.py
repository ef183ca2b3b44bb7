"""Draws memory over time, one panel for each allocator, with matplotlib (the extra `plot`).

Bands stack up to the whole memory: tokens at the bottom, then each waste, then what is free.
Units: seconds across, shares of all slots upward.
"""

from pathlib import Path

from blockyard.cluster.capacity.replay_report import ReplayAnswer

__all__ = ["check_plot", "write_plot"]

_BANDS = (
    ("filled", "tokens", "#1f6f4a"),
    ("reserved", "reserved, not filled", "#e07b39"),
    ("internal", "internal fragmentation", "#b5303c"),
    ("external", "free, outside the largest hole", "#8a63a8"),
    ("cached", "free, kept for its content", "#a9cfe8"),
    ("free", "free", "#eef1f4"),
)


def check_plot(path: Path) -> None:
    """Find out before a long run whether its plot can be written.

    Raises:
        ValueError: matplotlib is missing, or cannot write such a file.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise ValueError(
            "--plot needs matplotlib; install it with: pip install 'blockyard[plot]'"
        ) from None
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in kinds:
        raise ValueError(f"--plot {path}: name a file that ends in .png, .svg or .pdf")
    if not path.expanduser().parent.is_dir():
        raise ValueError(f"--plot {path}: there is no such folder")


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
            [[getattr(state, band) / total for _, state in points] for band, _, _ in _BANDS],
            labels=[label for _, label, _ in _BANDS],
            colors=[color for _, _, color in _BANDS],
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
