"""`blockyard ledger`: prints a running server's books on every block, once or as they change."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from blockyard.cluster.commands.errors import EXIT_FAILED, EXIT_MISUSED, fail, reported_errors

__all__ = ["ledger", "ledger_object"]


def ledger(
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object; with --watch one on each line."),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the books as they change, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(help="Seconds between two looks at the books.", min=0.1, max=3600.0),
    ] = 1.0,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Prove the books: walks every request and block once. Exit code 1 if they do not "
            "add up.",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Write a picture to this PNG or SVG: of now, or with --watch of all that was "
            "seen until Ctrl-C.",
            show_default=False,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Server's HOST:PORT.",
            envvar="BLOCKYARD_ADDRESS",
            show_default="127.0.0.1:50051",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds until the answer must be there; none with --watch.", min=0.001),
    ] = 30.0,
) -> None:
    """Show where every block and token slot is, what is wasted, and who runs and waits."""
    from blockyard.cluster.books.ledger_text import show_ledger, show_ledgers
    from blockyard.cluster.client import BlockingClient, server_address

    if watch and audit:
        raise fail("--audit proves the books once; leave out --watch", EXIT_MISUSED)
    if plot is not None:
        from blockyard.cluster.capacity.plot_file import check_plot

        try:
            check_plot(plot)
        except ValueError as error:
            raise fail(str(error), EXIT_MISUSED) from None
    where = server_address(address)
    with (
        reported_errors(where),
        BlockingClient(where, timeout) as client,
        _drawn_at_the_end(plot) as seen,
    ):
        if watch:
            responses = map(seen, client.watch_ledger(interval))
            if as_json:
                _print_lines(responses)
            else:
                show_ledgers(responses)
            return
        response = seen(client.ledger(audit))
        if as_json:
            typer.echo(json.dumps(ledger_object(response)))
        else:
            show_ledger(response)
        if any(group.audit for group in response.groups):
            raise typer.Exit(EXIT_FAILED)


def ledger_object(response: Any) -> dict[str, object]:
    """A `LedgerResponse` as plain values, zeros included; later versions only add keys.

    What the server does not know is None.
    """
    return {"groups": [_fields(group) for group in response.groups]}


@contextmanager
def _drawn_at_the_end(plot: Path | None) -> Iterator[Callable[[Any], Any]]:
    """Gives back each `LedgerResponse` it is shown; however this ends, all of them are drawn."""
    if plot is None:
        yield lambda response: response
        return
    from blockyard.cluster.books.ledger_plot import LedgerHistory

    history = LedgerHistory()
    began = time.monotonic()

    def seen(response: Any) -> Any:
        history.add(time.monotonic() - began, response)
        return response

    try:
        yield seen
    finally:
        if len(history):
            history.write(plot)
            typer.echo(f"memory: {plot}", err=True)


def _print_lines(responses: Iterator[Any]) -> None:
    for response in responses:
        print(json.dumps(ledger_object(response)), flush=True)


def _fields(message: Any) -> dict[str, Any]:
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        return [_fields(entry) for entry in value] if field.message_type else list(value)
    if field.has_presence and not message.HasField(field.name):
        return None
    return _fields(value) if field.message_type is not None else value
