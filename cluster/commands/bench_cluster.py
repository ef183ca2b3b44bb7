"""`blockyard bench cluster`: a cluster of this machine under load, and what it makes of faults."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from blockyard.cluster.commands.errors import EXIT_FAILED, EXIT_INTERRUPTED, fail

__all__ = ["bench_cluster"]


def bench_cluster(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    faults: Annotated[int, typer.Option(help="Random faults.", min=0)] = 200,
    seed: Annotated[int, typer.Option(help="Which faults, and when.")] = 0,
) -> None:
    """Measure binding and scaling, then break things at random; exit code 1 if a token is missing.

    Starts a Ray cluster of its own, with the witness in place of a model.
    """
    from blockyard.cluster.benchmark.cluster import measure_cluster

    try:
        found = measure_cluster(faults, seed, lambda what: typer.echo(what, err=True))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except (RuntimeError, TimeoutError) as error:
        raise fail(str(error) or "a group did not come back in time") from None
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        typer.echo(f"requests bound a second, 64 groups: {found.dispatch_per_s:,.0f}")
        typer.echo(f"  of the scheduler's own time:      {found.dispatch_per_cpu_s:,.0f}")
        typer.echo(f"a second group serves after:        {found.scale_up_s:.1f} s")
        kinds = ", ".join(f"{count} {fault}" for fault, count in sorted(found.by_fault.items()))
        typer.echo(f"faults:                             {found.faults} ({kinds})")
        typer.echo(
            f"all groups serve again after:       {found.recovery_s_p50:.1f} s (median), "
            f"{found.recovery_s_max:.1f} s (most)"
        )
        typer.echo(f"streams whole and right:            {found.streams:,}")
        typer.echo(f"streams lost, streams changed:      {found.lost}, {found.changed}")
    if found.lost or found.changed:
        raise typer.Exit(EXIT_FAILED)
