"""Shows a replay on a terminal: one column for each allocator, within 80 columns.

Takes the plain values that `--json` prints, so that both say the same. Units: tokens, seconds.
"""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["show_replay"]


def show_replay(report: dict[str, Any], console: Console) -> None:
    """Print every allocator's figures side by side, then one line that compares them."""
    setup = report["setup"]
    least = f"{setup['min_groups']} to " if setup["min_groups"] < setup["groups"] else ""
    groups = f"{least}{setup['groups']} group" + ("s" if setup["groups"] > 1 else "")
    title = (
        f"{report['requests']:,} requests on {groups} of {setup['tp']} x {setup['device']}, "
        f"{setup['slots']:,} slots; limit {setup['max_seq_len']:,}"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in report["allocators"]:
        table.add_column(name.replace(":", ":\n"), justify="right")
    rows = [*_ROWS, *_SCALING_ROWS] if least else _ROWS
    for label, cell in rows:
        table.add_row(label, *(cell(figures) for figures in report["allocators"].values()))
    console.print(table)
    blocks = report["allocators"].get("blocks")
    for name, figures in report["allocators"].items():
        if blocks is None or name == "blocks" or not figures["mean_running"]:
            continue
        times = blocks["mean_running"] / figures["mean_running"]
        console.print(
            f"blocks run {times:.1f} times as many as {name}: {blocks['mean_running']:,.0f} "
            f"against {figures['mean_running']:,.0f}",
            highlight=False,
        )
    console.print(
        f"{report['simulated_s']:,.0f} s simulated in {report['wall_s']:,.1f} s", highlight=False
    )


def _share(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda figures: f"{figures['slots_ratio'][name]:.1%}"


def _seconds(name: str, share: str, digits: int) -> Callable[[dict[str, Any]], str]:
    def cell(figures: dict[str, Any]) -> str:
        value = figures[name][share]
        return "-" if value is None else f"{value:,.{digits}f} s"

    return cell


def _preemptions(figures: dict[str, Any]) -> str:
    kinds = figures.get("preemptions_by_kind")
    text = f"{figures['preemptions']:,}"
    if kinds and figures["preemptions"]:
        text += "\n" + "\n".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
    return text


_ROWS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("finished", lambda figures: f"{figures['finished']:,}"),
    ("refused", lambda figures: f"{figures['refused']:,}"),
    ("running: most", lambda figures: f"{figures['peak_running']:,}"),
    ("  mean", lambda figures: f"{figures['mean_running']:,.1f}"),
    ("filled of allocated", lambda figures: f"{figures['filled_ratio']:.1%}"),
    ("of all memory: tokens", _share("filled")),
    ("  reserved", _share("reserved")),
    ("  internal", _share("internal")),
    ("  cached", _share("cached")),
    ("  free outside largest", _share("external")),
    ("  free", _share("free")),
    ("prefix hits", lambda figures: f"{figures['prefix_hit_ratio']:.1%}"),
    ("preemptions", _preemptions),
    ("first token p50", _seconds("ttft_s", "p50", 2)),
    ("  p99", _seconds("ttft_s", "p99", 2)),
    ("between tokens p50", _seconds("inter_token_s", "p50", 4)),
    ("  p99", _seconds("inter_token_s", "p99", 4)),
    ("answer tokens/s", lambda figures: f"{figures['output_tokens_per_s']:,.0f}"),
)

_SCALING_ROWS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("groups: most", lambda figures: f"{figures['scaling']['peak_groups']:,}"),
    ("  mean", lambda figures: f"{figures['scaling']['mean_groups']:,.2f}"),
    ("  changes", lambda figures: f"{figures['scaling']['changes']:,}"),
)
