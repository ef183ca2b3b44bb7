"""The tracer over OpenTelemetry's SDK. Sends in batches from a thread of its own, over OTLP/HTTP.

Standard variables (`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS`, ...) are the SDK's and
work as anywhere; a request that came with a decision about sampling keeps it. Nothing is put into
OpenTelemetry's globals: a process may have others beside it. Units: seconds, nanoseconds inside.
"""

import time

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as OpenSpan
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from blockyard.cluster.tracing import Span, Tracer, Value

__all__ = ["OpenTracer", "exporting_tracer"]

_PROPAGATOR = TraceContextTextMapPropagator()
_NANOSECONDS = 1_000_000_000


class OpenTracer:
    """Implements `tracing.Tracer` over a provider, which it owns."""

    on = True

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("blockyard")

    def begin(self, name: str, traceparent: str, entry: bool = True) -> Span:
        """See `Tracer`."""
        began = time.time_ns()
        parent = _PROPAGATOR.extract({"traceparent": traceparent} if traceparent else {})
        kind = SpanKind.SERVER if entry else SpanKind.INTERNAL
        return _OpenSpan(
            self, self._tracer.start_span(name, parent, kind=kind, start_time=began), began
        )

    def part(self, parent: OpenSpan, name: str, begin_ns: int, end_ns: int) -> None:
        """A span that is over already."""
        context = set_span_in_context(parent)
        self._tracer.start_span(name, context, start_time=begin_ns).end(max(begin_ns, end_ns))

    def close(self) -> None:
        """See `Tracer`."""
        self._provider.shutdown()


class _OpenSpan:
    def __init__(self, tracer: OpenTracer, span: OpenSpan, began: int) -> None:
        self._tracer = tracer
        self._span = span
        self._began = began
        self._ended = False

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self._span))
        return carrier.get("traceparent", "")

    def set(self, **attributes: Value) -> None:
        for name, value in attributes.items():
            self._span.set_attribute(f"blockyard.{name}", value)

    def part(self, name: str, begin: float, end: float) -> None:
        if self._span.is_recording():
            begin_ns, end_ns = (self._began + int(at * _NANOSECONDS) for at in (begin, end))
            self._tracer.part(self._span, name, begin_ns, end_ns)

    def end(self, error: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        if error:
            self._span.set_status(StatusCode.ERROR, error)
        self._span.end()


def exporting_tracer(endpoint: str, process: str) -> Tracer:
    """A tracer that sends to an endpoint. Raises ImportError without the exporter's package."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider = TracerProvider(
        resource=Resource.create({"service.name": "blockyard", "blockyard.process": process}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return OpenTracer(provider)
