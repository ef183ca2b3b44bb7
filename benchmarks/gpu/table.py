"""The results as a page of tables."""

from collections.abc import Sequence
from typing import Any

__all__ = ["markdown"]

_LONGEST = 160
_DIGITS = 4


def markdown(document: dict[str, Any]) -> str:
    """One table a part, of whatever its rows hold."""
    title = document.get("device") or "no device"
    lines = [f"# {title}, {document['started'][:10]}", ""]
    if document["rehearsal"]:
        lines += ["A rehearsal without a GPU: times and rates say only that the code runs.", ""]
    if "seconds" in document:
        lines += [f"All parts took {document['seconds']} s.", ""]
    for part in document["parts"]:
        state = part["state"] if part["state"] != "done" else f"{part['seconds']} s"
        lines += [f"## {part['name']} ({state})", ""]
        if part.get("message"):
            lines += ["```", part["message"].strip(), "```", ""]
        lines += _tables(part["rows"])
    return "\n".join(lines)


def _tables(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One table for each run of rows that hold the same."""
    lines: list[str] = []
    before: tuple[str, ...] = ()
    for row in rows:
        names = tuple(row)
        if names != before:
            lines += [""] if lines else []
            lines += ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
            before = names
        lines.append("| " + " | ".join(_cell(value) for value in row.values()) + " |")
    return [*lines, ""] if lines else []


def _cell(value: object) -> str:
    if isinstance(value, float):
        text = f"{value:.{_DIGITS}g}" if abs(value) < 10**_DIGITS else f"{value:,.0f}"
    elif isinstance(value, dict):
        text = ", ".join(f"{name}: {_cell(each)}" for name, each in value.items())
    else:
        text = str(value)
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
