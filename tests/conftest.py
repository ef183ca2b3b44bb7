"""What tests of several folders share: a collector of spans, adapters on disk, torch's threads."""

import contextlib
import copy
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Of torch's: over small tensors they would wait for each other on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


MakeAdapter = Callable[..., Any]


@pytest.fixture(scope="session")
def make_adapter() -> MakeAdapter:
    """Writes an adapter as PEFT saves it, and answers the model with it merged into its weights.

    `alter` may change the tensors before they are written; `config` adds to the configuration.
    """
    import torch
    from safetensors.torch import save_file

    def make(
        folder: Path,
        model: Any,
        seed: int,
        rank: int = 4,
        alpha: float = 8.0,
        targets: tuple[str, ...] = (),
        config: dict[str, Any] | None = None,
        alter: Callable[[dict[str, Any]], None] = lambda tensors: None,
    ) -> Any:
        draw = torch.Generator().manual_seed(seed)
        settings = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"}
        settings |= config or {}
        scale = alpha / (rank**0.5 if settings.get("use_rslora") else rank)
        merged, tensors = copy.deepcopy(model), {}
        for name, module in model.named_modules():
            kind = type(module).__name__
            if (".layers." not in name and ".h." not in name) or kind not in ("Linear", "Conv1D"):
                continue
            if targets and name.rpartition(".")[2] not in targets:
                continue
            outputs, inputs = module.weight.shape if kind == "Linear" else module.weight.T.shape
            down = torch.randn(rank, inputs, generator=draw) * 0.2
            up = torch.randn(outputs, rank, generator=draw) * 0.2
            tensors[f"base_model.model.{name}.lora_A.weight"] = down
            tensors[f"base_model.model.{name}.lora_B.weight"] = up
            delta = scale * (up @ down)
            weight = merged.get_submodule(name).weight
            weight.data += delta if kind == "Linear" else delta.T
        alter(tensors)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: t.contiguous() for name, t in tensors.items()},
            folder / "adapter_model.safetensors",
        )
        (folder / "adapter_config.json").write_text(json.dumps(settings))
        return merged

    return make
