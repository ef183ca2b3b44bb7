"""The yard on a terminal: the same news that the page draws, as text.

A block is a character: its colour is its request's, its shade how full it is. Units: as in the
news.
"""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["show_yard"]

_SHADES = "░▒▓█"
_NOBODY = 0xFFFF
_MOST_MAP_ROWS = 24
_MOST_REQUESTS = 12
_OTHERS = "(another tenant's)"
_PLAIN = ("red", "green", "yellow", "blue", "magenta", "cyan")
_COLOURS = (*_PLAIN, *(f"bright_{colour}" for colour in _PLAIN))


def show_yard(group: Mapping[str, Any], width: int) -> RenderableType:
    """One group's news in so many columns; `yard` must be among them."""
    return Group(_figures(group), Text(), _map(group["yard"], width), Text(), _requests(group))


def _figures(group: Mapping[str, Any]) -> Text:
    blocks, requests, shares = group["blocks"], group["requests"], group["shares"]
    preempted = group["preempted"]
    waiting = requests["waiting"] + requests["parked"]
    lines = [
        f"{group['model']} on {group['device']}, {group['id']}, step {group['step']:,}",
        f"{requests['running']} running, {waiting} waiting; {blocks['active']:,} active + "
        f"{blocks['cached']:,} cached + {blocks['fenced']:,} fenced + {blocks['free']:,} free = "
        f"{blocks['total']:,} blocks",
        f"of all slots: {shares['tokens']:.1%} hold tokens, {shares['reservation']:.1%} promised, "
        f"{shares['internal']:.1%} empty inside blocks",
    ]
    for other in group["contiguous"]:
        if other["policy"] == "max_seq_len":
            lines.append(
                f"in contiguous memory: {other['shares']['tokens']:.1%} hold tokens, "
                f"{other['shares']['reservation']:.1%} reserved, {other['running']} running"
            )
    lines.append(
        f"preempted: {preempted['swapped']} swapped, {preempted['recomputed']} to recompute, "
        f"{preempted['held']} only out of the batch, {preempted['moved']} to another group"
    )
    return Text("\n".join(lines))


def _map(yard: Mapping[str, Any], width: int) -> Text:
    """Cells, several in a character where they would not fit."""
    active, cached, fenced, filled = (
        base64.b64decode(yard[name]) for name in ("active", "cached", "fenced", "filled")
    )
    owners = base64.b64decode(yard["owners"])
    step = -(-len(active) // max(1, width * _MOST_MAP_ROWS))
    text = Text()
    for column, cell in enumerate(range(0, len(active), step)):
        if column and column % width == 0:
            text.append("\n")
        if active[cell]:
            owner = int.from_bytes(owners[2 * cell : 2 * cell + 2], "little")
            shade = _SHADES[min(3, filled[cell] // 64)]
            text.append(shade, _colour(yard["requests"], owner))
        elif fenced[cell]:
            text.append("x", "red")
        else:
            text.append("/" if cached[cell] else "·", "dim")
    blocks = yard["blocks_per_cell"] * step
    scale = f"{blocks:,} blocks" if blocks > 1 else "a block"
    text.append(f"\n{_SHADES} active  / cached  x fenced  · free; a character is {scale}", "dim")
    return text


def _colour(requests: list[Mapping[str, Any]], owner: int) -> str:
    if owner == _NOBODY:
        return "white"
    return _COLOURS[zlib.crc32(requests[owner]["mark"].encode()) % len(_COLOURS)]


def _requests(group: Mapping[str, Any]) -> RenderableType:
    listed = sorted(group["yard"]["requests"], key=lambda each: each["state"] == "running")
    if not listed:
        return Text("nobody is served at the moment", "dim")
    table = Table(box=None, pad_edge=False)
    for title in ("request", "state", "prompt", "made", "blocks", "lost", "why it waits"):
        right = title in ("prompt", "made", "blocks", "lost")
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for number, request in enumerate(listed[:_MOST_REQUESTS]):
        index = group["yard"]["requests"].index(listed[number])
        why = request["reason"].replace("_", " ")
        if request["blocks_short"]:
            why += f", {request['blocks_short']} short"
        choice = f" #{request['choice']}" if request["choice"] else ""
        name = (request["request_id"] or _OTHERS) + choice
        table.add_row(
            Text(name, _colour(group["yard"]["requests"], index)),
            request["state"],
            f"{request['prompt_tokens']:,}",
            f"{request['output_tokens']:,} of {request['max_tokens']:,}",
            f"{request['num_blocks']:,}",
            str(request["num_preemptions"]),
            why,
        )
    left = group["yard"]["num_requests"] - min(len(listed), _MOST_REQUESTS)
    return Group(table, Text(f"and {left:,} more" if left else "", "dim"))
