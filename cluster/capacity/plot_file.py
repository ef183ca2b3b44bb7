"""What plots of memory have in common: the bands they stack, and whether a file can be written."""

from pathlib import Path

__all__ = ["BANDS", "check_plot"]

BANDS = (
    ("filled", "tokens", "#1f6f4a"),
    ("reserved", "reserved, not filled", "#e07b39"),
    ("internal", "internal fragmentation", "#b5303c"),
    ("external", "free, outside the largest hole", "#8a63a8"),
    ("cached", "free, kept for its content", "#a9cfe8"),
    ("free", "free", "#eef1f4"),
)
"""Fields of a `SlotState`, what they are called, and their colours; the lowest first."""


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
