"""`blockyard load-adapter` and `blockyard unload-adapter`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.commands.errors import reported_errors
from blockyard.cluster.commands.states import Address, Model, Timeout

if TYPE_CHECKING:
    from blockyard.cluster.client import GenerationClient
    from blockyard.protos import cluster_pb2 as pb

__all__ = ["load_adapter", "unload_adapter"]

Name = Annotated[str, typer.Argument(help="What requests call it.")]


def load_adapter(
    name: Name,
    path: Annotated[
        str, typer.Argument(help="Below the server's --lora-root, on every one of its nodes.")
    ],
    model: Model = "",
    timeout: Timeout = 600.0,
    address: Address = None,
) -> None:
    """Have a model be served with a LoRA adapter too, in all of its groups."""
    from blockyard.cluster.adapters import adapter_client

    told = _ask(
        address, timeout, lambda client: adapter_client.load_adapter(client, name, path, model)
    )
    typer.echo(f"{told.name} is served, rank {told.rank}, version {told.version}")


def unload_adapter(
    name: Name, model: Model = "", timeout: Timeout = 600.0, address: Address = None
) -> None:
    """Take no more requests for an adapter; those that run with it finish first."""
    from blockyard.cluster.adapters import adapter_client

    told = _ask(address, timeout, lambda client: adapter_client.unload_adapter(client, name, model))
    typer.echo(f"{told.name} is served no more")


def _ask(
    address: str | None,
    timeout: float,
    order: "Callable[[GenerationClient], Awaitable[pb.Adapter]]",
) -> "pb.Adapter":
    from blockyard.cluster.client import GenerationClient, server_address

    where = server_address(address)

    async def ask() -> "pb.Adapter":
        async with GenerationClient(where, timeout) as client:
            return await order(client)

    with reported_errors(where):
        return asyncio.run(ask())
