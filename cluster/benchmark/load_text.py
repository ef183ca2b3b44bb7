"""Shows the report of a load on a terminal, within 80 columns.

Takes the plain values that `--json` prints, so that both say the same. Units are in the labels.
"""

from typing import Any

from rich.console import Console
from rich.table import Column, Table

__all__ = ["show_load"]

_WAITS = (
    ("to the first token", "ttft_ms"),
    ("between tokens", "itl_ms"),
    ("a whole request", "request_ms"),
)


def show_load(report: dict[str, Any], console: Console) -> None:
    """Print throughput and failures, then a table of waits, then what there is besides."""
    how = (
        f"closed loop, {report['concurrency']} in flight"
        if report["loop"] == "closed"
        else "open loop, "
        + (f"{report['rate']:g} a second" if report["rate"] else "at recorded times")
    )
    lines = [
        f"{report['model']}: {report['completed']:,} of {report['requests']:,} requests in "
        f"{report['seconds']:,.1f} s ({how})",
        f"output tokens/s: {report['output_tokens_per_s']:,.1f}",
        f"requests/s:      {report['requests_per_s']:,.2f}",
    ]
    if report["skipped"]:
        lines.append(f"not sent, as they do not fit the model: {report['skipped']:,}")
    lines += [f"failed with {kind}: {count:,}" for kind, count in report["errors"].items()]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    table = Table("milliseconds", *_columns(), title_justify="left")
    for label, name in _WAITS:
        table.add_row(label, *(_cell(report[name][part]) for part in ("p50", "p90", "p99")))
    console.print(table)
    good, structured = report["goodput"], report["structured"]
    if good is not None:
        console.print(
            f"goodput: {good['requests_per_s']:,.2f} requests/s, {good['ratio']:.1%} of all",
            highlight=False,
        )
    if structured is not None:
        speeds = structured["output_tokens_per_s"]
        console.print(
            f"{structured['valid']:,} of {structured['requests']:,} answers fit their schemas; "
            f"{speeds['structured']:,.1f} output tokens/s, {speeds['plain']:,.1f} without: "
            f"{structured['overhead_ratio']:.1%} less",
            highlight=False,
            soft_wrap=True,
        )


def _columns() -> list[Column]:
    return [Column(name, justify="right") for name in ("median", "90th", "99th")]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
