"""`blockyard chaos`: makes something go wrong in a cluster that allows it, to see what happens."""

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.chaos.faults import DEFAULT_SECONDS, Fault
from blockyard.cluster.commands.errors import EXIT_MISUSED, fail, reported_errors

if TYPE_CHECKING:
    from blockyard.cluster.client import GenerationClient

__all__ = ["chaos"]

SLOW_READER = "slow-reader"
_FAULTS = (*Fault, SLOW_READER)
_TIMEOUT_SECONDS = 30.0


def chaos(
    fault: Annotated[str, typer.Argument(help=f"One of {', '.join(_FAULTS)}.")],
    group: Annotated[
        str, typer.Option(help="Id of the group that it befalls.", show_default="the first by id")
    ] = "",
    rank: Annotated[int, typer.Option(help="Which of its ranks.", min=0)] = 0,
    seconds: Annotated[
        float, typer.Option(help="How long what passes by itself lasts.", min=0.01, max=600.0)
    ] = DEFAULT_SECONDS,
    address: Annotated[
        str | None,
        typer.Option(
            help="Server's HOST:PORT.",
            envvar="BLOCKYARD_ADDRESS",
            show_default="127.0.0.1:50051",
        ),
    ] = None,
) -> None:
    """Kill or stop a process, or break a wire, of a cluster started with `--allow-chaos`."""
    from blockyard.cluster.chaos.chaos_client import ChaosRefused
    from blockyard.cluster.client import server_address

    if fault not in _FAULTS:
        raise fail(f"{fault!r} is no fault; known are {', '.join(_FAULTS)}", EXIT_MISUSED)
    where = server_address(address)
    with reported_errors(where):
        try:
            typer.echo(asyncio.run(_befall(where, fault, group, rank, seconds)))
        except ChaosRefused as refused:
            raise fail(str(refused)) from None


async def _befall(where: str, fault: str, group: str, rank: int, seconds: float) -> str:
    from blockyard.cluster.chaos.chaos_client import disturb
    from blockyard.cluster.client import GenerationClient

    async with GenerationClient(where, _TIMEOUT_SECONDS + seconds) as client:
        if fault == SLOW_READER:
            return await _read_slowly(client, seconds)
        answer = await disturb(client, fault, group, rank, seconds)
        return f"{answer.group_id}: {answer.done}" if answer.group_id else answer.done


async def _read_slowly(client: "GenerationClient", seconds: float) -> str:
    """Ask for a long answer, and take nothing of it for so long. Any cluster has such readers."""
    from blockyard.cluster.client import Settings, build_request

    settings = Settings(max_tokens=1000, ignore_eos=True)
    request = build_request(prompt="Count to a thousand.", settings=settings)
    tokens = chunks = 0
    async with aclosing(client.stream(request)) as stream:
        async for chunk in stream:
            if not chunks:
                await asyncio.sleep(seconds)
            chunks += 1
            tokens += len(chunk.token_ids)
    return f"read {tokens} tokens in {chunks} pieces after {seconds:g} s of silence"
