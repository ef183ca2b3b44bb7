"""`blockyard sleep`, `blockyard wake` and `blockyard update-weights`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.commands.errors import reported_errors

if TYPE_CHECKING:
    from blockyard.cluster.client import GenerationClient
    from blockyard.protos import cluster_pb2 as pb

__all__ = ["Address", "Model", "Timeout", "sleep", "update_weights", "wake"]

Address = Annotated[
    str | None,
    typer.Option(
        help="Server's HOST:PORT.", envvar="BLOCKYARD_ADDRESS", show_default="127.0.0.1:50051"
    ),
]
Model = Annotated[str, typer.Option(help="Its name.", show_default="the server's default")]
Timeout = Annotated[
    float, typer.Option(help="Most seconds to wait until all groups have done it.", min=0.1)
]


def sleep(model: Model = "", timeout: Timeout = 600.0, address: Address = None) -> None:
    """Have a model give back the memory of its weights and blocks; its requests wait."""
    from blockyard.cluster.states import state_client

    _order(address, timeout, lambda client: state_client.sleep(client, model))


def wake(model: Model = "", timeout: Timeout = 600.0, address: Address = None) -> None:
    """Have a model that sleeps load its weights and go on."""
    from blockyard.cluster.states import state_client

    _order(address, timeout, lambda client: state_client.wake_up(client, model))


def update_weights(
    directory: Annotated[
        str, typer.Argument(help="Below the server's --weights-root, on every one of its nodes.")
    ],
    model: Model = "",
    timeout: Timeout = 600.0,
    address: Address = None,
) -> None:
    """Have a model go on with other weights of the same shape; its requests wait meanwhile."""
    from blockyard.cluster.states import state_client

    _order(address, timeout, lambda client: state_client.update_weights(client, directory, model))


def _order(
    address: str | None,
    timeout: float,
    order: "Callable[[GenerationClient], Awaitable[pb.ModelState]]",
) -> None:
    from blockyard.cluster.client import GenerationClient, server_address

    where = server_address(address)

    async def ask() -> "pb.ModelState":
        async with GenerationClient(where, timeout) as client:
            return await order(client)

    with reported_errors(where):
        told = asyncio.run(ask())
    state = "sleeps" if told.sleeping else "is awake"
    weights = f" with weights {told.weight_version}" if told.weight_version else ""
    groups = "1 group" if told.groups == 1 else f"{told.groups} groups"
    typer.echo(f"{told.model} {state}{weights} in {groups}")
