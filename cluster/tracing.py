"""Spans of a request across processes, as protocols; without a destination nothing is traced.

A parent is named as W3C trace context does: `traceparent`, one line of text that crosses wires as
it is. Nothing is ambient: whoever begins a span says under which. Knows no OpenTelemetry. Units:
seconds.
"""

from typing import Protocol

__all__ = ["NO_TRACER", "MissingExtra", "Span", "Tracer", "Value", "make_tracer"]

Value = str | int | float | bool


class MissingExtra(Exception):
    """Traces are wanted, and what exports them is not installed."""


class Span(Protocol):
    """Something that takes time."""

    @property
    def traceparent(self) -> str:
        """What names it as a parent, anywhere; empty when nobody records it."""
        ...

    def set(self, **attributes: Value) -> None:
        """Note facts, under names of ours."""
        ...

    def part(self, name: str, begin: float, end: float) -> None:
        """A span below this one that is over already, in seconds since this one began."""
        ...

    def end(self, error: str = "") -> None:
        """It is over, and has failed if `error` says how. Safe to call twice."""
        ...


class Tracer(Protocol):
    """Begins spans."""

    @property
    def on(self) -> bool:
        """Whether anybody records them."""
        ...

    def begin(self, name: str, traceparent: str, entry: bool = True) -> Span:
        """A span below the one that is named, or one of its own when that is empty or no name.

        `entry` says that the parent is in another process.
        """
        ...

    def close(self) -> None:
        """Send what has not been sent; spans that end later are lost. Takes a while."""
        ...


class _NoSpan:
    traceparent = ""

    def set(self, **attributes: Value) -> None:
        pass

    def part(self, name: str, begin: float, end: float) -> None:
        pass

    def end(self, error: str = "") -> None:
        pass


class _NoTracer:
    on = False

    def begin(self, name: str, traceparent: str, entry: bool = True) -> Span:
        return _NO_SPAN

    def close(self) -> None:
        pass


_NO_SPAN = _NoSpan()
NO_TRACER: Tracer = _NoTracer()
"""Records nothing."""


def make_tracer(endpoint: str | None, process: str) -> Tracer:
    """A tracer that sends to an OTLP endpoint over HTTP; one that records nothing without.

    Args:
        endpoint: URL such as `http://collector:4318/v1/traces`.
        process: what this process is: ingress, central or engine.

    Raises:
        MissingExtra: the extra `trace` is not installed.
    """
    if endpoint is None:
        return NO_TRACER
    try:
        from blockyard.cluster.otel_tracer import exporting_tracer
    except ImportError as error:
        raise MissingExtra(
            f"traces need OpenTelemetry ({error}); install it with pip install 'blockyard[trace]'"
        ) from None
    return exporting_tracer(endpoint, process)
