"""`blockyard generate`: asks a running server and prints the answer as it comes."""

import json
import sys
import unicodedata
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Annotated, Any

import typer

from blockyard.cluster.commands.errors import EXIT_FAILED, EXIT_MISUSED, fail, reported_errors

__all__ = ["generate"]


def generate(
    prompt: Annotated[str, typer.Argument(help="What to ask; `-` reads it from standard input.")],
    model: Annotated[str, typer.Option(help="Model to ask.", show_default="server's default")] = "",
    system: Annotated[
        str | None, typer.Option(help="System message put before the prompt.", show_default=False)
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Continue the prompt as plain text, without chat template."),
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens to make.", show_default="as many as fit")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="0 takes the likeliest token each time.",
            show_default="what the model's makers advise, else 0",
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Choose from the fewest tokens that reach this probability.",
            show_default="what the model's makers advise, else 1.0",
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            help="Choose from this many likeliest tokens.",
            show_default="what the model's makers advise, else all",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="The same seed gives the same answer.", show_default="random", min=0, max=2**64 - 1
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="End the answer before this text; may be given often.", show_default=False
        ),
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option(help="Do not end before this many tokens.", show_default="0")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the model's end-of-text tokens.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object at the end: text, token_ids, "
            "finish_reason, usage, timings.",
        ),
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            help="Server's HOST:PORT.", envvar="BLOCKYARD_ADDRESS", show_default="127.0.0.1:50051"
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds until the whole answer must be there.", min=0.001)
    ] = 600.0,
) -> None:
    """Ask a running server (see `blockyard serve`) and print the answer as it comes."""
    from blockyard.cluster.client import BlockingClient, Settings, build_request, server_address

    if raw and system is not None:
        raise fail("--system needs the chat template; leave out --raw or --system", EXIT_MISUSED)
    text = sys.stdin.read() if prompt == "-" else prompt
    settings = Settings(
        max_tokens=max_tokens,
        temperature=temperature,
        # At temperature 1 a small model answers nonsense; at 0 it says what it knows best.
        fallback_temperature=0.0,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        min_tokens=min_tokens,
        ignore_eos=True if ignore_eos else None,
        stop=stop or (),
    )
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    try:
        request = build_request(
            prompt=text if raw else None,
            messages=None if raw else messages,
            model=model,
            settings=settings,
        )
    except ValueError as error:
        raise fail(f"a value cannot be sent: {error}", EXIT_MISUSED) from None
    where = server_address(address)
    with reported_errors(where), BlockingClient(where, timeout) as client:
        _show(_interruptible(client.stream(request)), as_json)


def _interruptible(chunks: Iterator[Any]) -> Iterator[Any]:
    """The same chunks, read by another thread.

    Ctrl-C raises in the main thread wherever it happens to be. Inside gRPC it may hold a lock, and
    then closing the connection would wait for ever; here it only waits for a chunk.
    """
    arrived: SimpleQueue[Any] = SimpleQueue()
    ended = object()

    def read() -> None:
        try:
            for chunk in chunks:
                arrived.put(chunk)
            arrived.put(ended)
        except BaseException as error:
            arrived.put(error)

    Thread(target=read, name="answer", daemon=True).start()
    while (item := arrived.get()) is not ended:
        if isinstance(item, BaseException):
            raise item
        yield item


def _show(chunks: Any, as_json: bool) -> None:
    text: list[str] = []
    token_ids: list[int] = []
    last = None
    on_terminal = sys.stdout.isatty()
    for last in chunks:
        text.append(last.text)
        token_ids.extend(last.token_ids)
        if not as_json and last.text:
            sys.stdout.write(_printable(last.text) if on_terminal else last.text)
            sys.stdout.flush()
    if last is None:
        raise fail("the server gave no answer; its log may say why", EXIT_FAILED)
    if as_json:
        typer.echo(json.dumps(_as_object(last, "".join(text), token_ids), ensure_ascii=False))
    else:
        typer.echo()


def _printable(text: str) -> str:
    """Text without control characters: a model must not steer the terminal."""
    return "".join(
        character if character in "\n\t" or unicodedata.category(character) != "Cc" else "\ufffd"
        for character in text
    )


def _as_object(last: Any, text: str, token_ids: list[int]) -> dict[str, object]:
    from blockyard.protos.generation_pb2 import FinishReason

    reason = FinishReason.Name(last.finish_reason).removeprefix("FINISH_REASON_").lower()
    timings = last.timings
    return {
        "text": text,
        "token_ids": token_ids,
        "finish_reason": reason,
        "usage": {
            "prompt_tokens": last.usage.prompt_tokens,
            "cached_tokens": last.usage.cached_tokens,
            "completion_tokens": last.usage.completion_tokens,
        },
        "timings": {
            field.name: getattr(timings, field.name)
            for field in timings.DESCRIPTOR.fields
            if not field.has_presence or timings.HasField(field.name)
        },
        "request_id": last.request_id,
        "model": last.model,
    }
