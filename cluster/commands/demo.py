"""`blockyard demo`: one question through the whole path on this machine, with its books."""

import sys
import time
from typing import Annotated

import typer

from blockyard.cluster.commands.errors import fail
from blockyard.cluster.commands.start import Blocks, Model, configure, free_port, running

__all__ = ["demo"]

_QUESTION = "What is the capital of France?"


def demo(
    model: Model = "smollm2-135m",
    question: Annotated[str, typer.Option(help="What to ask.")] = _QUESTION,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to answer with.", min=1)] = 64,
    blocks: Blocks = None,
) -> None:
    """Start a local cluster, ask one question over gRPC, show the books, stop."""
    started = time.monotonic()
    port = free_port()
    config = configure(model, None, {"grpc_port": port, "num_blocks": blocks})
    with running(config, None) as deployment:
        from blockyard.cluster.books.ledger_text import show_ledger
        from blockyard.cluster.client import BlockingClient, Settings, build_request

        address = f"{config.grpc_host}:{port}"
        request = build_request(
            messages=[{"role": "user", "content": question}],
            settings=Settings(max_tokens=max_tokens, temperature=0.0),
        )
        typer.echo(f"\n> {question}\n")
        with BlockingClient(address, 120.0) as client:
            last = books = None
            for last in client.stream(request):
                sys.stdout.write(last.text)
                sys.stdout.flush()
                books = books or client.ledger()
            if last is None:
                raise fail("the server gave no answer")
            typer.echo(
                f"\n\n{last.usage.prompt_tokens} prompt tokens, "
                f"{last.usage.completion_tokens} answer tokens, first after "
                f"{last.timings.first_token_seconds:.2f} s, all after "
                f"{last.timings.total_seconds:.2f} s; "
                f"{time.monotonic() - started:.0f} s since the start\n"
            )
            typer.echo("the books while it answered:\n")
            show_ledger(books)
            after = client.ledger().groups[0].blocks
            typer.echo(
                f"\nnow that it has answered {after.free:,} of {after.total:,} blocks are free, "
                f"and {after.cached:,} are kept for prompts that begin alike"
            )
        deployment.drain()
