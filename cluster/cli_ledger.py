"""`blockyard ledger`: prints a running server's books on every block."""

import json
from typing import Annotated, Any

import typer

from blockyard.cluster.cli_errors import reported_errors

__all__ = ["ledger", "ledger_object", "show_ledger"]


def ledger(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    address: Annotated[
        str | None,
        typer.Option(
            help="Server's HOST:PORT.",
            envvar="BLOCKYARD_ADDRESS",
            show_default="127.0.0.1:50051",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds until the answer must be there.", min=0.001)
    ] = 30.0,
) -> None:
    """Show where every block and token slot is, and how many requests run and wait."""
    from blockyard.cluster.client import BlockingClient, server_address

    where = server_address(address)
    with reported_errors(where):
        with BlockingClient(where, timeout) as client:
            response = client.ledger()
        if as_json:
            typer.echo(json.dumps(ledger_object(response)))
        else:
            show_ledger(response)


def ledger_object(response: Any) -> dict[str, object]:
    """A `LedgerResponse` as plain values, zeros included; later versions only add keys."""
    return {"groups": [_fields(group) for group in response.groups]}


def show_ledger(response: Any) -> None:
    """Print a `LedgerResponse` as a table: a row for each count, a column for each group."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not response.groups:
        console.print("no groups are up")
        return
    table = Table(title="where every block and token slot is", title_justify="left")
    table.add_column("")
    for group in response.groups:
        table.add_column(group.group_id, justify="right")
    for part in ("blocks", "slots", "requests"):
        for field in getattr(response.groups[0], part).DESCRIPTOR.fields:
            counts = [getattr(getattr(group, part), field.name) for group in response.groups]
            table.add_row(
                f"{part}: {field.name.replace('_', ' ')}", *(f"{count:,}" for count in counts)
            )
        table.add_section()
    table.add_row("steps", *(f"{group.step:,}" for group in response.groups))
    table.add_row("preemptions", *(f"{group.preemptions:,}" for group in response.groups))
    console.print(table)
    for group in response.groups:
        console.print(
            f"{group.group_id}: {group.model} on {group.device} in {group.dtype}, "
            f"{group.block_size} token slots in a block",
            highlight=False,
        )


def _fields(message: Any) -> dict[str, Any]:
    return {
        field.name: (
            _fields(getattr(message, field.name))
            if field.message_type is not None
            else getattr(message, field.name)
        )
        for field in message.DESCRIPTOR.fields
    }
