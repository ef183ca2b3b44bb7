"""`blockyard config render`: writes the file from which Ray Serve deploys on a running cluster."""

import json
from typing import Annotated, Any

import typer

from blockyard.cluster.commands.errors import EXIT_MISUSED, fail
from blockyard.cluster.commands.start import Groups, Model, Port, group_numbers

__all__ = ["config_app"]

config_app = typer.Typer(help="Files for clusters of your own.", no_args_is_help=True)


@config_app.callback()
def config() -> None:
    """Files for clusters of your own."""


@config_app.command("render")
def render(
    model: Model = "smollm2-135m",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    groups: Groups = "1",
    ranks: Annotated[
        int,
        typer.Option("--ranks", "--tp", help="Workers that share each copy of the model.", min=1),
    ] = 1,
    host: Annotated[str, typer.Option(help="Address that ingresses listen on.")] = "0.0.0.0",
    port: Port = 50051,
    http_port: Annotated[
        int | None, typer.Option(help="Port of OpenAI's HTTP API.", show_default="off")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of the books for Prometheus.", show_default="off")
    ] = None,
    serve_grpc_port: Annotated[
        int | None,
        typer.Option(
            help="Port of Ray Serve's own gRPC proxy on each node; the one after it is taken, too.",
            show_default="off",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: any other field of ServeConfig; may be repeated."),
    ] = None,
) -> None:
    """Print what `serve deploy` takes, as JSON, which is YAML too."""
    if device not in ("cpu", "cuda"):
        raise fail(f"--device is {device!r}; cpu or cuda, for the file is read later", EXIT_MISUSED)
    from blockyard.cluster.deploy.serve_config import serve_config

    values = group_numbers(groups) | {"num_ranks": ranks, "grpc_host": host, "grpc_port": port}
    if http_port is not None:
        values |= {"http_host": host, "http_port": http_port}
    if metrics_port is not None:
        values |= {"metrics_host": host, "metrics_port": metrics_port}
    if serve_grpc_port is not None:
        values |= {"serve_grpc_port": serve_grpc_port}
    values |= dict(_pair(text) for text in set_ or ())
    try:
        typer.echo(json.dumps(serve_config(model, device, values), indent=2))
    except ValueError as error:
        raise fail(str(error), EXIT_MISUSED) from None


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise fail(f"--set {text!r}; give NAME=VALUE", EXIT_MISUSED)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
