"""Shows a capacity plan and a measurement on a terminal, within 80 columns.

Takes the plain values that `--json` prints, so that both say the same. Units: bytes, tokens.
"""

from typing import Any

from rich.console import Console
from rich.table import Table

from blockyard.cluster.capacity.quantities import format_bytes

__all__ = ["show_measurement", "show_plan"]


def show_plan(answer: dict[str, Any], console: Console) -> None:
    """Print every part of the answer that is there."""
    if "kv_bytes_per_token" in answer:
        console.print(_model_table(answer))
    if "contiguous" in answer:
        console.print(_capacity_table(answer))
    if answer.get("alternatives"):
        console.print(_alternatives_table(answer["alternatives"]))
    for line in _small_parts(answer):
        console.print(line, highlight=False)
    _show_end(answer, console)


def show_measurement(answer: dict[str, Any], console: Console) -> None:
    """Print a measurement."""
    table = _pairs(f"KV memory of {answer['source']}")
    contiguous = answer["contiguous"]
    table.add_row("capacity", f"{answer['capacity_tokens']:,} tokens")
    table.add_row("running requests", f"{answer['running']:,.1f}")
    table.add_row("mean tokens held by each", f"{answer['mean_length']:,.1f}")
    table.add_row("really used", f"{answer['used_tokens']:,.0f} tokens")
    table.add_row("utilisation", f"{answer['utilisation']:.1%}")
    table.add_section()
    table.add_row(
        f"a contiguous server (limit {answer['max_seq_len']:,}) would run",
        f"{contiguous['concurrency']:,}",
    )
    table.add_row("  of each reservation idle", f"{contiguous['reservation_waste']:.1%}")
    table.add_row("  of its memory holding tokens", f"{contiguous['pool_filled_ratio']:.1%}")
    console.print(table)
    _show_end(answer, console)


def _pairs(title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    return table


def _model_table(answer: dict[str, Any]) -> Table:
    table = _pairs("model and memory")
    ranks = answer["tp"]
    weights = format_bytes(answer["weight_bytes"]) if answer["weight_bytes"] else "not known"
    table.add_row("weights", weights)
    table.add_row("KV of one token", f"{answer['kv_bytes_per_token']:,} B")
    if ranks > 1:
        table.add_row("  on one rank", f"{answer['kv_bytes_per_token_per_rank']:,} B")
    if "kv_memory_bytes" in answer:
        memory = answer["kv_memory_bytes"]
        table.add_row("KV memory of a group", f"{memory:,} B ({format_bytes(memory)})")
        table.add_row("  token slots", f"{answer['total_slots']:,}")
        reserved = answer["kv_bytes_contiguous"]
        table.add_row("contiguous reservations take", f"{reserved:,} B ({format_bytes(reserved)})")
    table.add_row("groups", f"{answer['groups']} of {ranks} GPU" + ("s" if ranks > 1 else ""))
    return table


def _capacity_table(answer: dict[str, Any]) -> Table:
    contiguous, blocks = answer["contiguous"], answer["blocks"]
    table = Table(title="one group", title_justify="left")
    table.add_column("")
    table.add_column(f"contiguous\n(limit {answer['max_seq_len']:,})", justify="right")
    table.add_column(f"blocks\n(of {answer['block_size']} tokens)", justify="right")
    table.add_row("requests at once", *_counts(contiguous, blocks, "concurrency"))
    table.add_row("  in 99 of 100 moments", "", f"{blocks['sure_concurrency']:,}")
    if "requests" in answer:
        table.add_row(f"of {answer['requests']:,} run", *_counts(contiguous, blocks, "running"))
        table.add_row("  refused or queued", *_counts(contiguous, blocks, "refused"))
    if "filled_ratio" in contiguous:
        table.add_row(
            "given-out slots with tokens",
            f"{contiguous['filled_ratio']:.1%}",
            f"{blocks['filled_ratio']:.1%}",
        )
        table.add_row(
            "all slots with tokens",
            f"{contiguous['pool_filled_ratio']:.1%}",
            f"{blocks['pool_filled_ratio']:.1%}",
        )
        table.add_row("slots with tokens", *_counts(contiguous, blocks, "filled_slots"))
        table.add_row("  bytes really used", f"{contiguous['filled_bytes']:,}", "")
    table.add_row("blocks", "", f"{blocks['total_blocks']:,}")
    table.add_row("  of one request", "", f"{blocks['blocks_per_request']:,.1f}")
    if "requests" in answer:
        table.add_row("  of all requests", "", f"{blocks['needed_blocks']:,}")
    if blocks["shared_blocks"]:
        table.add_row("  shared by all", "", f"{blocks['shared_blocks']:,}")
    if "cluster" in answer:
        cluster = answer["cluster"]
        table.add_section()
        table.add_row(
            f"at once on {answer['gpus']} GPUs",
            f"{cluster['contiguous_concurrency']:,}",
            f"{cluster['blocks_concurrency']:,}",
        )
    return table


def _counts(contiguous: dict[str, Any], blocks: dict[str, Any], name: str) -> tuple[str, str]:
    return f"{contiguous[name]:,}", f"{blocks[name]:,}"


def _alternatives_table(alternatives: list[dict[str, Any]]) -> Table:
    table = Table(title="requests at once, with one thing changed", title_justify="left")
    for name in ("", "GPUs", "contiguous", "blocks", "blocks, a GPU"):
        table.add_column(name, justify="right" if name else "left")
    for entry in alternatives:
        counts = (entry["contiguous_concurrency"], entry["blocks_concurrency"])
        each = entry["blocks_per_gpu"]
        table.add_row(
            entry["change"],
            str(entry["num_gpus"]),
            *("does not fit" if count is None else f"{count:,}" for count in counts),
            "" if each is None else f"{each:,.1f}",
        )
    return table


def _small_parts(answer: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if "shared_prefix" in answer:
        part = answer["shared_prefix"]
        lines.append(
            f"shared prefix: {part['stored_bytes']:,} B stored once instead of "
            f"{part['unshared_bytes']:,} B for {part['requests']:,} requests"
        )
    if "batching" in answer:
        part = answer["batching"]["static"]
        lines.append(
            f"static batch: {part['iterations']:,} iterations, {part['useful_ratio']:.0%} of the "
            "work useful; continuous batching: 100%"
        )
    if "hole" in answer:
        part = answer["hole"]
        fragmentation = part["external_fragmentation"]
        known = "" if fragmentation is None else f" (external fragmentation {fragmentation:.0%})"
        words = {True: "serve", False: "refuse", None: "serve if that much is free in all"}
        lines.append(
            f"request of {format_bytes(part['request_bytes'])}, largest hole "
            f"{format_bytes(part['largest_hole_bytes'])}: contiguous "
            f"{'serves' if part['contiguous_serves'] else 'refuses'}{known}; blocks "
            f"{words[part['blocks_serve']]}"
        )
    return lines


def _show_end(answer: dict[str, Any], console: Console) -> None:
    console.print(f"\n[bold]verdict[/bold]: {answer['verdict']}", highlight=False)
    for note in answer["assumptions"]:
        console.print(f"- {note}", highlight=False, markup=False)
