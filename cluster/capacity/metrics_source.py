"""Where a server's metrics come from: its URL, sampled for a while, or a file with one sample.

Asks only what a monitoring system asks: `/metrics`, and once the endpoint that tells the limits.
Units: seconds, tokens.
"""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.cluster.capacity.server_metrics import MetricsUnreadable, ServerSample, read_sample

__all__ = ["MetricsSource", "ServerLimits", "SourceUnreachable", "collect_samples"]

_MOST_BYTES = 1 << 24
_ANSWER_SECONDS = 10.0
_MOST_FAILURES = 3


class SourceUnreachable(Exception):
    """Nothing answered, or the file cannot be read."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a server tells beside its metrics; None: it does not."""

    capacity_tokens: int | None = None
    limit: int | None = None


class MetricsSource:
    """The metrics of one server: `http(s)://HOST:PORT[/PATH]`, `HOST:PORT`, or a file."""

    def __init__(self, place: str) -> None:
        path = Path(place).expanduser()
        self.path = path if path.is_file() else None
        self.name = place
        if self.path is not None:
            return
        if "://" not in place and ":" in place:
            place = f"http://{place}"
        parts = urllib.parse.urlsplit(place)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise SourceUnreachable(
                f"{self.name!r} is neither a file nor an address such as http://127.0.0.1:8000"
            )
        self._root = f"{parts.scheme}://{parts.netloc}"
        self._url = self._root + (parts.path if parts.path.strip("/") else "/metrics")
        if parts.query:
            self._url += f"?{parts.query}"

    def sample(self) -> ServerSample:
        """One sample.

        Raises:
            SourceUnreachable: no answer.
            MetricsUnreadable: an answer that says nothing of KV memory.
        """
        if self.path is not None:
            try:
                return read_sample(self.path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError) as error:
                raise SourceUnreachable(f"cannot read {self.path}: {error}") from None
        return read_sample(_get(self._url))

    def limits(self, server: str) -> ServerLimits:
        """What a server says of its limits; nothing known where it does not answer."""
        if self.path is not None:
            return ServerLimits()
        try:
            if server == "TGI":
                answer = _object(json.loads(_get(f"{self._root}/info")))
                return ServerLimits(
                    _positive(answer.get("max_batch_total_tokens")),
                    _positive(answer.get("max_total_tokens")),
                )
            models = _object(json.loads(_get(f"{self._root}/v1/models"))).get("data")
            known = [_positive(_object(model).get("max_model_len")) for model in models or ()]
            return ServerLimits(limit=max((limit for limit in known if limit), default=None))
        except (SourceUnreachable, ValueError, TypeError):
            return ServerLimits()


def collect_samples(
    source: MetricsSource,
    seconds: float,
    interval_seconds: float,
    advance: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[ServerSample]:
    """Sample for a while; Ctrl-C ends it early with what there is. A file gives one sample.

    `advance` is told the share of the time that has passed, from 0 to 1; `clock` and `sleep` are
    the time that passes.

    Raises:
        SourceUnreachable, MetricsUnreadable: at the first sample, or several times in a row.
    """
    samples = [source.sample()]
    failures = 0
    start = clock()
    try:
        while source.path is None and (passed := clock() - start) < seconds:
            advance(passed / seconds)
            sleep(min(interval_seconds, seconds - passed))
            try:
                samples.append(source.sample())
                failures = 0
            except (SourceUnreachable, MetricsUnreadable):
                failures += 1
                if failures >= _MOST_FAILURES:
                    raise
    except KeyboardInterrupt:
        pass
    advance(1.0)
    return samples


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
            content: bytes = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise SourceUnreachable(f"{url} answers {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise SourceUnreachable(f"{url} does not answer: {reason}") from None
    if len(content) > _MOST_BYTES:
        raise SourceUnreachable(f"{url} answers with more than {_MOST_BYTES >> 20} MiB")
    return content.decode("utf-8", errors="replace")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
