"""What tests of several folders share: a collector of spans."""

import contextlib
import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class SpanCollector:
    """Takes spans over OTLP/HTTP, as an OpenTelemetry collector does."""

    port: int = 0
    spans: list[Span] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def take(self, body: bytes) -> None:
        sent = ExportTraceServiceRequest.FromString(body)
        self.spans.extend(
            span
            for resource in sent.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        )


@contextlib.contextmanager
def collecting() -> Iterator[SpanCollector]:
    collector = SpanCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="session")
def span_collector() -> Callable[[], AbstractContextManager[SpanCollector]]:
    """Starts a collector of spans, for the length of a context."""
    return collecting
