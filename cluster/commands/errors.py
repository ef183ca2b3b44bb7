"""How commands fail: one line on stderr that says what to do, and an exit code.

Knows nothing of what the commands do.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

__all__ = ["EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_MISUSED", "fail", "reported_errors"]

EXIT_FAILED = 1
EXIT_MISUSED = 2
EXIT_INTERRUPTED = 130


def fail(message: str, code: int = EXIT_FAILED) -> typer.Exit:
    """Print `message` and give the exception that ends the command; raise it."""
    sys.stdout.flush()
    typer.echo(f"blockyard: {' '.join(message.split())}", err=True)
    return typer.Exit(code)


@contextmanager
def reported_errors(address: str) -> Iterator[None]:
    """Turn what goes wrong while talking to the server at `address` into a line and a code."""
    from blockyard.cluster.client import ServerError
    from blockyard.cluster.tls import BadTlsVariable

    try:
        yield
    except BadTlsVariable as error:
        raise fail(str(error), EXIT_MISUSED) from None
    except ServerError as error:
        if not error.reached:
            raise fail(
                f"no server answers at {address}; start one with `blockyard serve`, or give "
                "--address or BLOCKYARD_ADDRESS"
            ) from None
        if error.code == "DEADLINE_EXCEEDED":
            raise fail("the answer did not come in time; give a longer --timeout") from None
        raise fail(f"the server answered {error.code}: {error.message}") from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read our output has had enough. Keep the interpreter's last flush silent.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_FAILED) from None
