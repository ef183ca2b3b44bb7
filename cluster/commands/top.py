"""`blockyard top`: the yard page's news on a terminal, as they come."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any

import typer

from blockyard.cluster.commands.errors import EXIT_MISUSED, fail

__all__ = ["top"]

_ANSWER_SECONDS = 30.0
"""News come several times a second, or, of a large pool, every few seconds."""


def top(
    url: Annotated[
        str, typer.Option(help="Where the server offers HTTP; see `blockyard serve --http-port`.")
    ] = "http://127.0.0.1:8000",
    group: Annotated[
        str, typer.Option(help="A group's id, or the start of it.", show_default="the first")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
) -> None:
    """Show where every block is, who holds it, and who waits for what, until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from blockyard.cluster.client import API_KEY_VARIABLE
    from blockyard.cluster.dashboard.yard_text import show_yard
    from blockyard.cluster.tls import BadTlsVariable

    console = Console()
    try:
        chosen = _group_id(url, group) if group else ""
        pictures = (
            show_yard(found, max(40, console.width)) for found in _groups(_news(url, chosen))
        )
        if once or not console.is_terminal:
            console.print(next(pictures))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for picture in pictures:
                live.update(picture, refresh=True)
    except KeyboardInterrupt:
        return
    except StopIteration:
        raise fail("no group is up at the moment") from None
    except BadTlsVariable as error:
        raise fail(str(error), EXIT_MISUSED) from None
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.UNAUTHORIZED:
            raise fail(f"the server at {url} answered {error.code} {error.reason}") from None
        raise fail(
            f"the server at {url} asks for an API key; put one into {API_KEY_VARIABLE}"
        ) from None
    except (OSError, ValueError) as error:
        raise fail(
            f"no yard at {url} ({error}); start a server with `blockyard serve --http-port 8000`, "
            "or give --url"
        ) from None


def _group_id(url: str, prefix: str) -> str:
    groups = [str(each["id"]) for each in next(_news(url, ""))["groups"]]
    found = [name for name in groups if name.startswith(prefix)]
    if len(found) != 1:
        raise fail(f"{len(found)} groups begin with {prefix}; there are {', '.join(groups)}")
    return found[0]


def _groups(news: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The group whose pool each news has a picture of; ends when there is none."""
    for told in news:
        drawn = [each for each in told["groups"] if each["yard"] is not None]
        if not drawn:
            return
        yield drawn[0]


def _news(url: str, group: str) -> Iterator[dict[str, Any]]:
    from blockyard.cluster.client import API_KEY_VARIABLE
    from blockyard.cluster.tls import environment_context

    address = f"{url.rstrip('/')}/yard/news?{urllib.parse.urlencode({'group': group})}"
    key = os.environ.get(API_KEY_VARIABLE)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    asked = urllib.request.Request(address, headers=headers)
    context = environment_context()
    with urllib.request.urlopen(asked, timeout=_ANSWER_SECONDS, context=context) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
