"""How a server that is started here logs: options, and a pipe that brings lines to a terminal.

The processes of a cluster of our own hand their lines to the one that a person looks at. Those of
somebody's cluster may be on other machines: their lines stay in Ray's session folder, or in the
file that was asked for.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from blockyard.cluster.commands.errors import EXIT_MISUSED, fail
from blockyard.cluster.logs import LOG_FORMATS, LOG_LEVELS, LogConfig

__all__ = ["LogFormat", "LogLevel", "check_tracing", "logging_as"]

LogFormat = Annotated[
    str,
    typer.Option(
        envvar="BLOCKYARD_LOG_FORMAT",
        help=f"How log lines look: {' or '.join(LOG_FORMATS)}; each has the request's id.",
    ),
]
LogLevel = Annotated[
    str,
    typer.Option(
        envvar="BLOCKYARD_LOG_LEVEL", help=f"The least that is logged: {', '.join(LOG_LEVELS)}."
    ),
]


def check_tracing(endpoint: str) -> None:
    """Refuse to trace without what exports traces, before anything is started."""
    from blockyard.cluster.tracing import MissingExtra, make_tracer

    try:
        make_tracer(endpoint, "check").close()
    except MissingExtra as error:
        raise fail(str(error), EXIT_MISUSED) from None


_END = b"\0\n"


@contextmanager
def logging_as(
    style: str, level: str, file: Path | None, prompts: bool, ray_address: str | None
) -> Iterator[LogConfig]:
    """What a deployment is to be told of logging; lines come to standard error meanwhile."""
    try:
        told = LogConfig(style, level.upper(), None, prompts)
    except ValueError as error:
        raise fail(str(error), EXIT_MISUSED) from None
    if file is not None:
        try:
            with file.open("a"):
                pass
        except OSError as error:
            raise fail(f"--log-file: {error}", EXIT_MISUSED) from None
        yield LogConfig(style, told.level, str(file.resolve()), prompts)
    elif ray_address is not None:
        yield told
    else:
        with _relayed() as pipe:
            yield LogConfig(style, told.level, pipe, prompts)


@contextmanager
def _relayed() -> Iterator[str]:
    """A pipe by name; what is written to it comes out at standard error, line by line."""
    with TemporaryDirectory(prefix="blockyard-") as folder:
        path = os.path.join(folder, "log")
        os.mkfifo(path, 0o600)
        # Held open for writing too: with no writer left, reading would end.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CLOEXEC), "r+b", buffering=0) as pipe:
            relay = threading.Thread(target=_relay, args=(pipe.fileno(),), name="log-relay")
            relay.start()
            try:
                yield path
            finally:
                os.write(pipe.fileno(), _END)
                relay.join()


def _relay(descriptor: int) -> None:
    with os.fdopen(os.dup(descriptor), "rb") as lines:
        for line in lines:
            if line == _END:
                return
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
