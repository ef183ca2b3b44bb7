"""`blockyard record`: what a running cluster is asked for, as a trace that `replay` reads."""

import json
import secrets
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from blockyard.cluster.commands.errors import EXIT_MISUSED, fail, reported_errors

__all__ = ["record", "trace_line"]


def record(
    output: Annotated[Path, typer.Argument(help="File to append to.", show_default=False)],
    seconds: Annotated[
        float | None,
        typer.Option(help="Record for so long.", show_default="until Ctrl-C", min=0.1),
    ] = None,
    interval: Annotated[
        float, typer.Option(help="Seconds between two questions.", min=0.1, max=30.0)
    ] = 1.0,
    address: Annotated[
        str | None,
        typer.Option(
            help="Server's HOST:PORT.",
            envvar="BLOCKYARD_ADDRESS",
            show_default="127.0.0.1:50051",
        ),
    ] = None,
) -> None:
    """Record arrivals: times, lengths, hashed prefixes and tenants, and no text.

    A request is written when it has ended. Those that came before the recording are left out.
    """
    from blockyard.cluster.client import BlockingClient, server_address

    if output.exists():
        # Two recordings have two salts, so prefixes of one would never be found in the other.
        raise fail(f"{output} is there already; give another name, or remove it", EXIT_MISUSED)
    if not output.expanduser().parent.is_dir():
        raise fail(f"there is no folder for {output}", EXIT_MISUSED)
    where = server_address(address)
    until = None if seconds is None else time.monotonic() + seconds
    count = missed = 0
    with (
        reported_errors(where),
        BlockingClient(where, 30.0) as client,
        output.expanduser().open("x", encoding="utf-8") as file,
    ):
        salt = secrets.token_bytes(32)
        after: dict[str, int] = {}
        try:
            while True:
                answer = client.arrivals(after, salt)
                after = dict(answer.next)
                missed += answer.missed
                for arrival in answer.arrivals:
                    file.write(trace_line(arrival) + "\n")
                count += len(answer.arrivals)
                file.flush()
                if until is not None and time.monotonic() >= until:
                    break
                if not answer.arrivals:
                    time.sleep(interval if until is None else _nap(interval, until))
        except KeyboardInterrupt:
            pass  # the way to end it
    typer.echo(f"recorded {count:,} requests; replay with: blockyard replay {output}", err=True)
    if missed:
        typer.echo(f"{missed:,} more ended faster than they were asked for", err=True)


def trace_line(arrival: Any) -> str:
    """One `Arrival` as a line of our own trace format."""
    line: dict[str, Any] = {
        "arrival_s": round(arrival.arrived_at, 6),
        "prompt_tokens": arrival.prompt_tokens,
        "output_tokens": arrival.output_tokens,
    }
    if arrival.tenant_hash:
        line["tenant"] = arrival.tenant_hash
    if arrival.prefix_ids:
        line["piece_tokens"] = arrival.piece_tokens
        line["prefix_ids"] = list(arrival.prefix_ids)
    return json.dumps(line)


def _nap(interval: float, until: float) -> float:
    return max(0.0, min(interval, until - time.monotonic()))
