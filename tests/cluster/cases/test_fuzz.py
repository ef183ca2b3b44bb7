"""Ten thousand requests that nobody would send: none is a failure of the server's, none hangs.

Half are messages over gRPC, made from the message's own descriptor, half JSON over HTTP, made from
the same fields and of the wrong types. A witness answers those that are in order.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockyard.cluster.grpc_front import GrpcFront
from blockyard.cluster.http.openapi import openapi_document
from blockyard.cluster.http_front import HttpFront
from blockyard.cluster.local_dispatcher import LocalDispatcher
from blockyard.cluster.tokenizer import load_tokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.config import SchedulerConfig
from blockyard.workers.config import WorkerConfig
from blockyard.workers.description import describe_model
from blockyard.workers.fake import WitnessWorker
from blockyard.workers.witness_files import write_witness_files

CONTEXT = 48
EXAMPLES, AT_ONCE = 500, 10

WHOLE = st.sampled_from([0, 1, 2, 3, 7, 20, 21, 47, 48, 259, -1, -2, 2**31 - 1, -(2**31)])
NUMBERS = st.sampled_from(
    [0.0, 1.0, 0.5, 1e-9, 1e-5, 2.0, -2.0, 100.0, -1.0, 1e300, float("nan"), float("inf")]
)
TEXTS = st.one_of(
    st.sampled_from(
        ["", "a", "user", "system", "<|im_end|>", "x" * 300, "{}", '{"type": "object"}']
    ),
    st.text(max_size=12).map(lambda text: text.encode(errors="replace").decode()),
)
FORBIDDEN = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}


def _values(field: Any) -> st.SearchStrategy[Any]:
    """Values of one field of a message."""
    kinds = {
        FieldDescriptor.TYPE_DOUBLE: NUMBERS,
        FieldDescriptor.TYPE_BOOL: st.booleans(),
        FieldDescriptor.TYPE_STRING: TEXTS,
        FieldDescriptor.TYPE_UINT64: st.sampled_from([0, 1, 2**64 - 1]),
    }
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return messages(field.message_type._concrete_class)
    return kinds.get(field.type, WHOLE)


@st.composite
def messages(draw: st.DrawFn, kind: Any) -> Any:
    """A message with a few of its fields set to anything."""
    message = kind()
    fields = list(kind.DESCRIPTOR.fields)
    chosen = draw(st.lists(st.sampled_from(fields), max_size=4, unique_by=lambda f: f.number))
    for field in chosen:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entries = draw(st.dictionaries(WHOLE, NUMBERS, max_size=2))
            getattr(message, field.name).update(entries)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(_values(field), max_size=3)))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(message, field.name).CopyFrom(draw(_values(field)))
        else:
            setattr(message, field.name, draw(_values(field)))
    return message


NAMES = [field.name for field in pb.SamplingParameters.DESCRIPTOR.fields]
NAMES += ["model", "stream", "stream_options", "response_format", "structured_outputs", "tools"]
NAMES += ["max_completion_tokens", "top_logprobs", "suffix", "user", "anything"]
NAMES += ["tool_choice", "chat_template_kwargs", "resume_seconds", "instructions", "text"]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), WHOLE, TEXTS, st.sampled_from([0.5, 1.0, 2.0, -1.0])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "role", "content", "1", "json", "regex", "x"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
PLAINEST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
}
BODIES = st.tuples(
    st.sampled_from(sorted(PLAINEST)),
    st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4),
    st.one_of(
        st.fixed_dictionaries({"prompt": st.one_of(TEXTS, st.lists(WHOLE, max_size=4), JSON)}),
        st.just({"messages": [{"role": "user", "content": "a"}]}),
        st.fixed_dictionaries({"messages": JSON}),
        st.fixed_dictionaries({"input": st.one_of(TEXTS, JSON)}),
    ),
)


DOCUMENT = openapi_document("0")
SCHEMAS = DOCUMENT["components"]["schemas"]
POSTED = {
    path: methods["post"]["requestBody"]["content"]["application/json"]["schema"]
    for path, methods in DOCUMENT["paths"].items()
    if "requestBody" in methods.get("post", {})
}


def described(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a JSON schema of the document describes."""
    if "$ref" in schema:
        return st.deferred(lambda: described(SCHEMAS[schema["$ref"].rpartition("/")[2]]))
    if "anyOf" in schema:
        return st.one_of(*map(described, schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "string":
        return st.from_regex(schema["pattern"], fullmatch=True) if "pattern" in schema else TEXTS
    if kind == "integer":
        least, most = max(schema["minimum"], -(2**40)), min(schema["maximum"], 2**40)
        return st.one_of(st.integers(least, min(most, 20)), st.integers(least, most))
    if kind == "number":
        return st.floats(schema["minimum"], schema["maximum"], allow_nan=False)
    if kind == "array":
        most = min(3, schema.get("maxItems", 3))
        return st.lists(described(schema["items"]), min_size=schema["minItems"], max_size=most)
    if kind == "object" and "properties" in schema:
        fields = {name: described(inner) for name, inner in schema["properties"].items()}
        needed = {name: fields.pop(name) for name in schema["required"]}
        some = st.lists(st.sampled_from(sorted(fields) or [""]), max_size=4, unique=True)
        return some.flatmap(
            lambda names: st.fixed_dictionaries(
                {**needed, **{name: fields[name] for name in names if name}}
            )
        )
    simple = {"boolean": st.booleans(), "null": st.none()}
    return simple.get(str(kind), st.dictionaries(st.sampled_from(["1", "type"]), WHOLE, max_size=2))


CALLS = st.sampled_from(sorted(POSTED)).flatmap(
    lambda path: st.tuples(st.just(path), described(POSTED[path]), st.just({"max_tokens": 3}))
)


class Served:
    """A server in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.run(self._start(folder))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=120)

    async def _start(self, folder: Path) -> None:
        model = replace(describe_model(folder, "witness"), context_tokens=CONTEXT)
        worker = WitnessWorker(WorkerConfig(str(folder), CONTEXT, num_blocks=40), model.vocab_size)
        limits = SchedulerConfig(CONTEXT, max_running=16, max_step_tokens=64)
        self.dispatcher = await LocalDispatcher.start(model, worker, limits)
        tokenizers = {"witness": load_tokenizer(folder)}
        self._grpc, self._http = (
            GrpcFront(self.dispatcher, tokenizers),
            HttpFront(self.dispatcher, tokenizers),
        )
        self._channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{await self._grpc.start('127.0.0.1:0')}"
        )
        self._call = self._channel.unary_unary(
            "/blockyard.v1.Generation/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        url = f"http://127.0.0.1:{await self._http.start('127.0.0.1', 0)}"
        self._web = httpx2.AsyncClient(base_url=url, timeout=60)

    async def codes(self, requests: list[pb.GenerateRequest]) -> list[Any]:
        async def code(request: pb.GenerateRequest) -> Any:
            try:
                await self._call(request, timeout=60)
            except grpc.aio.AioRpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        return await asyncio.gather(*map(code, requests))

    async def answers(self, calls: list[tuple[str, Any, Any]]) -> list[Any]:
        return await asyncio.gather(
            *(self._web.post(path, json={**more, **body}) for path, body, more in calls)
        )

    async def drained(self) -> None:
        async with asyncio.timeout(60):
            while True:
                self.dispatcher.engine.check()
                ledger = self.dispatcher.engine.ledger()
                if ledger.blocks.free + ledger.blocks.cached == ledger.blocks.total:
                    assert not (ledger.requests.running or ledger.requests.waiting)
                    return
                await asyncio.sleep(0.005)

    def close(self) -> None:
        async def stop() -> None:
            await self._channel.close()
            await self._web.aclose()
            await asyncio.gather(self._grpc.stop(None), self._http.stop(None))
            await self.dispatcher.close()

        self.run(stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("witness")
    write_witness_files(folder)
    running = Served(folder)
    yield running
    running.run(running.drained())
    running.close()


fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@fuzzed
@given(requests=st.lists(messages(pb.GenerateRequest), min_size=AT_ONCE, max_size=AT_ONCE))
def test_any_message_is_answered_or_refused(
    served: Served, requests: list[pb.GenerateRequest]
) -> None:
    for request, code in zip(requests, served.run(served.codes(requests)), strict=True):
        assert code not in FORBIDDEN, request


@pytest.mark.slow
@pytest.mark.timeout(1800)
@fuzzed
@given(calls=st.lists(BODIES, min_size=AT_ONCE, max_size=AT_ONCE))
def test_any_json_is_answered_or_refused(served: Served, calls: list[tuple[str, Any, Any]]) -> None:
    for call, answer in zip(calls, served.run(served.answers(calls)), strict=True):
        assert answer.status_code in (200, 400, 404, 429), (call, answer.text)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@fuzzed
@given(calls=st.lists(CALLS, min_size=AT_ONCE, max_size=AT_ONCE))
def test_what_the_document_describes_is_known(
    served: Served, calls: list[tuple[str, Any, Any]]
) -> None:
    fitting = [(path, body, more if "completions" in path else {}) for path, body, more in calls]
    for call, answer in zip(fitting, served.run(served.answers(fitting)), strict=True):
        assert answer.status_code in (200, 400, 404, 409, 429), (call, answer.text)
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert {"message", "type", "param", "code"} <= set(error)
            assert "is not known here" not in error["message"], call


def test_the_document_names_each_field_and_no_other(served: Served) -> None:
    calls: list[tuple[str, Any, Any]] = []
    for path, plainest in PLAINEST.items():
        schema = SCHEMAS[POSTED[path]["$ref"].rpartition("/")[2]]
        for form in schema.get("anyOf", [schema]):
            known = {**PLAINEST["/v1/chat/completions"], **plainest}
            needed = {name: known[name] for name in form["required"]}
            calls += [(path, {**needed, name: {"no": []}}, {}) for name in form["properties"]]
        calls.append((path, {**plainest, "surely_not": 1}, {}))
    for (path, body, _), answer in zip(calls, served.run(served.answers(calls)), strict=True):
        error = answer.json().get("error") or {"message": "", "param": ""}
        refused = error["param"] if "is not known here" in error["message"] else ""
        inner = {f"{name}.no" for name in body}
        assert refused in ({"surely_not"} if "surely_not" in body else {"", *inner}), path
