"""Spans through ingress, central scheduler and engine: one tree a request, whatever happens."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from blockyard.cluster.books.request_spans import RequestSpans
from blockyard.cluster.central import CentralScheduler
from blockyard.cluster.grpc_front import GrpcFront
from blockyard.cluster.http.key_gate import caller_of
from blockyard.cluster.otel_tracer import OpenTracer
from blockyard.cluster.request.observer import RequestObserver
from blockyard.cluster.tracing import NO_TRACER, make_tracer
from blockyard.protos import generation_pb2 as pb

STREAM = "/blockyard.v1.Generation/GenerateStream"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@dataclass
class Traced:
    """A stack whose processes all send their spans to one place."""

    stack: Any
    exporter: InMemorySpanExporter
    tracer: OpenTracer
    channel: Any

    async def add_group(self, **told: Any) -> Any:
        group = await self.stack.add_group(**told)
        spans = RequestSpans(self.tracer, f"group-{len(self.stack.groups)}")
        group.server.engine.listen(spans)
        return group

    async def ask(self, prompt: list[int], max_tokens: int, *metadata: tuple[str, str]) -> None:
        call = self.channel.unary_stream(
            STREAM,
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateChunk.FromString,
        )
        request = pb.GenerateRequest(
            tokens=pb.TokenIds(ids=prompt),
            sampling=pb.SamplingParameters(max_tokens=max_tokens, ignore_eos=True),
        )
        async for _ in call(request, metadata=metadata):
            pass

    def trees(self) -> list[dict[str, list[ReadableSpan]]]:
        """Spans by name, a tree each; every parent is there, or is the caller's."""
        traces: dict[int, dict[str, list[ReadableSpan]]] = defaultdict(lambda: defaultdict(list))
        spans = self.exporter.get_finished_spans()
        known = {span.context.span_id for span in spans}
        for span in spans:
            traces[span.context.trace_id][span.name].append(span)
            if span.parent is not None:
                assert span.parent.span_id in known or f"{span.parent.span_id:016x}" == PARENT
            assert span.start_time is not None
            assert span.end_time is not None
            assert span.start_time <= span.end_time
        return list(traces.values())


@pytest.fixture
async def traced(stack: Any, tokenizer: Any) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = OpenTracer(provider)
    await stack.stop_central()
    stack.central = CentralScheduler(tracer=tracer)
    await stack.central.start("127.0.0.1")
    observer = RequestObserver(tracer)
    front = GrpcFront(stack.dispatcher, {"witness": tokenizer}, observer=observer)
    port = await front.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Traced(stack, exporter, tracer, channel)
    await front.stop(None)
    tracer.close()


def under(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == parent.context.span_id


async def test_a_request_is_one_tree(traced: Traced) -> None:
    await traced.add_group()
    await traced.ask([1, 2, 3], 10)
    [tree] = traced.trees()
    assert {name: len(spans) for name, spans in tree.items()} == {
        "request": 1,
        "bind": 1,
        "engine": 1,
        "queue": 1,
        "prefill": 1,
        "decode": 1,
    }
    [[request], [bind], [engine]] = tree["request"], tree["bind"], tree["engine"]
    assert request.parent is None
    assert under(bind, request) and under(engine, request)
    for part in ("queue", "prefill", "decode"):
        assert under(tree[part][0], engine)
    assert tree["queue"][0].end_time == tree["prefill"][0].start_time
    assert tree["prefill"][0].end_time == tree["decode"][0].start_time
    told = {**(request.attributes or {}), **(engine.attributes or {})}
    assert told["blockyard.request_id"] == (request.attributes or {})["blockyard.request_id"]
    assert told["blockyard.model"] == "witness"
    assert told["blockyard.prompt_tokens"] == 3
    assert told["blockyard.answer_tokens"] == 10
    assert told["blockyard.outcome"] == "length"
    assert (bind.attributes or {})["blockyard.group"] == "group-0"


async def test_a_tree_grows_from_the_callers_span(traced: Traced) -> None:
    await traced.add_group()
    await traced.ask([1, 2, 3], 2, ("traceparent", TRACEPARENT))
    [tree] = traced.trees()
    [request] = tree["request"]
    assert f"{request.context.trace_id:032x}" == TRACE
    assert request.parent is not None and f"{request.parent.span_id:016x}" == PARENT


@pytest.mark.parametrize("traceparent", ["", "nonsense", TRACEPARENT.replace("-01", "-00")])
async def test_what_names_no_span_or_wants_none_does_no_harm(
    traced: Traced, traceparent: str
) -> None:
    await traced.add_group()
    await traced.ask([1, 2, 3], 2, ("traceparent", traceparent))
    # Whoever has decided against sampling is obeyed.
    assert len(traced.trees()) == (0 if traceparent.endswith("-00") else 1)


async def test_preempted_requests_stay_one_tree_each(traced: Traced) -> None:
    group = await traced.add_group(num_blocks=40)
    prompts = [[(n * 7 + i) % 200 + 3 for i in range(5 + n)] for n in range(30)]
    await asyncio.gather(*(traced.ask(prompt, 20) for prompt in prompts))
    assert group.server.ledger().preemptions > 0
    trees = traced.trees()
    assert len(trees) == len(prompts)
    assert all(len(tree["request"]) == len(tree["engine"]) == 1 for tree in trees)
    told = [(tree["engine"][0].attributes or {})["blockyard.preemptions"] for tree in trees]
    assert sum(int(str(each)) for each in told) == group.server.ledger().preemptions


async def test_a_request_that_goes_on_elsewhere_stays_one_tree(traced: Traced) -> None:
    for _ in range(2):
        await traced.add_group()
    first, second = traced.stack.groups
    for group in traced.stack.groups:
        group.workers[0].gate.clear()
    asking = asyncio.create_task(traced.ask([1, 2, 3], 6))
    await traced.stack.until(
        lambda: any(group.workers[0].entered.is_set() for group in traced.stack.groups)
    )
    lost, left = (first, second) if first.workers[0].entered.is_set() else (second, first)
    lost.workers[0].fault = RuntimeError("a rank fails")
    lost.workers[0].gate.set()
    left.workers[0].gate.set()
    await asking
    await traced.stack.until(lambda: len(traced.trees()[0]["engine"]) == 2)
    [tree] = traced.trees()
    [request] = tree["request"]
    assert all(under(span, request) for span in tree["engine"])
    resumed = [(span.attributes or {})["blockyard.resumed"] for span in tree["engine"]]
    assert resumed == [False, True]
    assert (request.attributes or {})["blockyard.answer_tokens"] == 6


async def test_what_an_engine_leaves_unfinished_is_told(traced: Traced, spec: Any) -> None:
    spans = RequestSpans(traced.tracer, "g")
    for name in ("a", "b", "c"):
        request = spec(name, (1, 2), 5)
        spans.submitted(
            type(request)(name, (1, 2), request.sampling, num_choices=2, traceparent=TRACEPARENT)
        )
    spans.aborted("a", 0)
    spans.aborted("a", 1)
    spans.aborted("b", None)
    spans.aborted("never seen", None)
    assert len(traced.exporter.get_finished_spans()) == 2
    spans.close()
    [*_, unfinished] = traced.exporter.get_finished_spans()
    assert unfinished.status.description == "the engine ended before the request"


async def test_refusals_are_not_the_servers_failures(traced: Traced) -> None:
    await traced.add_group()
    with pytest.raises(grpc.aio.AioRpcError):
        await traced.ask([1, 2, 3], 10_000)
    [tree] = traced.trees()
    [request] = tree["request"]
    assert (request.attributes or {})["blockyard.outcome"] == "invalid_argument"
    assert request.status.is_unset


async def test_without_a_destination_nothing_is_made(stack: Any, tokenizer: Any, spec: Any) -> None:
    assert make_tracer(None, "ingress") is NO_TRACER
    span = NO_TRACER.begin("request", TRACEPARENT)
    span.set(anything=1)
    span.part("queue", 0.0, 1.0)
    span.end()
    assert span.traceparent == ""
    assert not NO_TRACER.on


async def test_http_callers_name_their_span() -> None:
    from starlette.requests import Request

    headers = [(b"traceparent", TRACEPARENT.encode())]
    assert caller_of(Request({"type": "http", "headers": headers})).traceparent == TRACEPARENT
    assert caller_of(Request({"type": "http", "headers": []})).traceparent == ""


def test_spans_go_to_the_endpoint_that_is_named() -> None:
    tracer = make_tracer("http://127.0.0.1:9/v1/traces", "ingress")
    assert tracer.on
    assert tracer.begin("request", TRACEPARENT).traceparent.startswith(f"00-{TRACE}-")
    tracer.close()  # nothing has ended, so nothing is sent
