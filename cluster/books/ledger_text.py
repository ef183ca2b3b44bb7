"""Shows the books on a terminal within 80 columns: once, or as a table that changes in place.

Takes the messages that clients get. Units: blocks, slots, requests, bytes.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from blockyard.cluster.capacity.quantities import format_bytes

__all__ = ["show_ledger", "show_ledgers"]

_GROUPS_ABREAST = 3
"""So many columns of counts fit."""
_POLICIES = {
    "max_seq_len": "each request reserves the longest that it may become",
    "pow2": "each reserves a power of two, and moves when that is full",
    "exact": "each reserves what it will need, known from looking back",
}


def show_ledger(response: Any) -> None:
    """Print a `LedgerResponse`: a row for each count, a column for each group."""
    Console().print(_view(response))


def show_ledgers(responses: Iterable[Any]) -> None:
    """Show each `LedgerResponse` in place of the one before; below it where that cannot be."""
    console = Console()
    if not console.is_terminal:
        for response in responses:
            console.print(_view(response))
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for response in responses:
            live.update(_view(response), refresh=True)


def _view(response: Any) -> RenderableType:
    if not response.groups:
        return Text("no groups are up")
    parts: list[RenderableType] = []
    title: str | None = "where every block and token slot is"
    groups = list(response.groups)
    for first in range(0, len(groups), _GROUPS_ABREAST):
        parts.append(_table(groups[first : first + _GROUPS_ABREAST], title))
        title = None
    for group in groups:
        parts.extend(_notes(group))
    if response.HasField("central"):
        parts.extend(_central(response.central))
    return Group(*parts)


def _table(groups: list[Any], title: str | None) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for group in groups:
        table.add_column(group.group_id, justify="right")

    def add(name: str, cells: Iterator[str]) -> None:
        table.add_row(name, *cells)

    for part in ("blocks", "slots", "requests"):
        for field in getattr(groups[0], part).DESCRIPTOR.fields:
            name = field.name
            percent = f"{name}_percent" if part == "slots" else None
            add(
                f"{part}: {name.replace('_', ' ')}",
                (_count(group, part, name, percent) for group in groups),
            )
        table.add_section()
    if any(group.host_blocks.total for group in groups):
        for name in ("total", "free", "active"):
            add(f"host blocks: {name}", (f"{getattr(g.host_blocks, name):,}" for g in groups))
        table.add_section()
    add("tokens held", (f"{group.tokens.logical:,}" for group in groups))
    add("  for each slot", (f"{group.tokens.sharing_ratio:.2f}" for group in groups))
    add("pool with tokens", (f"{group.wastes.pool_filled_percent:.1f} %" for group in groups))
    add("steps", (f"{group.step:,}" for group in groups))
    add("preemptions", (f"{group.preemptions:,}" for group in groups))
    if any(group.ranks for group in groups):
        table.add_section()
        add("bytes: weights", (_bytes(group.sum, "weight_bytes") for group in groups))
        add("bytes: largest step", (_bytes(group.sum, "activation_bytes") for group in groups))
        if any(group.sum.graph_bytes for group in groups):
            add("bytes: CUDA graphs", (format_bytes(group.sum.graph_bytes) for group in groups))
        add("bytes: KV blocks", (format_bytes(group.sum.blocks.total) for group in groups))
        add("bytes: KV with tokens", (format_bytes(group.sum.slots.filled) for group in groups))
        if any(group.sum.HasField("allocator") for group in groups):
            add("bytes: allocator slack", (_slack(group.sum) for group in groups))
    return table


def _count(group: Any, part: str, name: str, percent: str | None) -> str:
    count = f"{getattr(getattr(group, part), name):,}"
    return count if percent is None else f"{count} ({getattr(group.wastes, percent):.1f} %)"


def _bytes(rank: Any, name: str) -> str:
    size = getattr(rank, name)
    return format_bytes(size) if size else "not measured"


def _slack(rank: Any) -> str:
    if not rank.HasField("allocator"):
        return "not known"
    slack = format_bytes(rank.allocator.slack)
    return f"{slack} ({rank.allocator.external_fragmentation_percent:.0f} % in holes)"


def _notes(group: Any) -> list[RenderableType]:
    notes: list[RenderableType] = [
        Text(
            f"{group.group_id}: {group.model} on {group.device} in {group.dtype}, "
            f"{group.block_size} token slots in a block"
        )
    ]
    if len(group.ranks) > 1:
        notes.append(_rank_table(group))
    # Who looks back has nothing to tell before the first request has ended.
    servers = [server for server in group.contiguous if server.peak_running]
    if servers:
        notes += [_contiguous_table(servers), *map(_policy, servers), Text(group.summary)]
    for server in group.contiguous:
        if server.HasField("first_out_of_memory"):
            moment = server.first_out_of_memory
            notes.append(
                Text(f"{server.policy} after {moment.after_seconds:,.0f} s: {moment.message}")
            )
    if group.HasField("audit"):
        notes.append(Text(f"audit: {group.audit or 'the books add up'}"))
    return notes


def _central(books: Any) -> list[RenderableType]:
    """What the central scheduler has done; nothing where it never had to."""
    told: list[RenderableType] = []
    moves = books.moves
    if moves.brought or moves.recomputed:
        told.append(
            Text(
                f"went on at another group: {moves.brought:,} with their blocks "
                f"({format_bytes(moves.bytes_in)}), {moves.recomputed:,} computed again"
            )
        )
    waiting = books.waiting
    if waiting.queued:
        told.append(
            Text(
                f"waiting for any group to have room: {waiting.queued:,} requests of "
                f"{waiting.queued_tokens:,} tokens, for up to {waiting.oldest_seconds:,.1f} s"
            )
        )
    if not (books.decisions or books.relieved):
        return told
    return [
        *told,
        Text(
            f"central scheduler: chose who gives way {books.decisions:,} times: {books.swapped:,} "
            f"swapped, {books.recomputed:,} to recompute, {books.moved:,} moved; "
            f"{books.relieved:,} went from one queue to another group"
        ),
    ]


def _rank_table(group: Any) -> Table:
    table = Table(title=f"bytes of {group.group_id}'s ranks", title_justify="left")
    for name in ("rank", "weights", "largest step", "KV blocks", "with tokens"):
        table.add_column(name, justify="right")
    for rank in group.ranks:
        table.add_row(
            str(rank.rank),
            _bytes(rank, "weight_bytes"),
            _bytes(rank, "activation_bytes"),
            format_bytes(rank.blocks.total),
            format_bytes(rank.slots.filled),
        )
    return table


def _policy(server: Any) -> Text:
    late = server.behind_seconds
    age = f", {late:,.0f} s ago" if late >= 1 else ""
    means = _POLICIES.get(server.policy, "how a newer server than this command reckons")
    return Text(f"  {server.policy}: {means}{age}")


def _contiguous_table(servers: list[Any]) -> Table:
    table = Table(title="contiguous servers with the same requests", title_justify="left")
    table.add_column("")
    for name in ("running", "queued", "refused", "filled", "reserved", "tail", "holes"):
        table.add_column(name, justify="right")
    for server in servers:
        table.add_row(
            server.policy,
            f"{server.running:,}",
            f"{server.queued:,}",
            f"{server.refused:,}",
            f"{server.filled_percent:.0f} %",
            f"{server.reservation_percent:.0f} %",
            f"{server.internal_percent:.0f} %",
            f"{server.external_fragmentation_percent:.0f} %",
        )
    return table
