"""`blockyard model`: finds and prepares a model's files on this machine."""

from typing import Annotated

import typer

from blockyard.cluster.commands.errors import EXIT_INTERRUPTED, fail

__all__ = ["model_app"]

model_app = typer.Typer(
    help="Work with model files on this machine.",
    no_args_is_help=True,
)


@model_app.callback()
def model() -> None:
    """Work with model files on this machine."""


@model_app.command("fetch")
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="A known name, a hub repository as org/name, or a local directory.",
            show_default="smollm2-135m",
        ),
    ] = "",
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare hashes of files already here, too.")
    ] = False,
) -> None:
    """Fetch a model and convert it if need be; print its directory. Quick when it is here."""
    from blockyard.cluster.commands.progress import TerminalProgress
    from blockyard.workers.catalog import DEFAULT_MODEL, ModelUnavailable, resolve_model

    try:
        with TerminalProgress() as progress:
            directory = resolve_model(name or DEFAULT_MODEL, None, progress, verify)
    except ModelUnavailable as error:
        raise fail(str(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(directory)
