"""The server over a real loopback connection."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from blockyard.protos import generation_pb2 as pb
from blockyard.protos import generation_pb2_grpc
from blockyard.scheduler.request import FinishReason, RefusalCode, RequestRefused, RequestUpdate

Spell = Callable[[str], list[int]]
GENERATE = "/blockyard.v1.Generation/Generate"
STREAM = "/blockyard.v1.Generation/GenerateStream"


@pytest.fixture
def generation(channel: Any) -> Any:
    return stub_of(generation_pb2_grpc.GenerationStub, channel)


def stub_of(stub_type: Any, channel: Any) -> Any:
    return stub_type(channel)


async def failure_of(call: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return caught.value


def details_of(error: Any) -> dict[str, any_pb2.Any]:
    status = status_pb2.Status()
    status.ParseFromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    return {detail.type_url.rpartition(".")[2]: detail for detail in status.details}


class TestGeneration:
    async def test_an_answer_and_its_stream(
        self, generation: Any, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("good "), spell("day"), FinishReason.STOP]
        answer = await generation.Generate(pb.GenerateRequest(prompt="hello"))
        chunks = [c async for c in generation.GenerateStream(pb.GenerateRequest(prompt="hello"))]
        assert answer.text == "".join(chunk.text for chunk in chunks) == "good day"
        assert chunks[-1].finish_reason == answer.finish_reason == pb.FINISH_REASON_STOP

    async def test_a_clients_deadline_reaches_the_engine_and_missing_it_is_called_so(
        self, generation: Any, dispatcher: Any
    ) -> None:
        late = RequestUpdate("any", (), FinishReason.DEADLINE, error="it would take 9 s")
        dispatcher.script = [late]
        request = pb.GenerateRequest(prompt="a")
        error = await failure_of(generation.Generate(request, timeout=30))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert error.details() == "it would take 9 s"
        dispatcher.script = [FinishReason.STOP]
        await generation.Generate(request)
        assert [c async for c in generation.GenerateStream(request, timeout=20)]
        seconds = [spec.deadline_seconds for _, spec in dispatcher.submitted]
        assert 20 < seconds[0] < 31 and seconds[1] is None and 10 < seconds[2] < 21  # it rounds

    async def test_a_name_in_use_already_exists(self, generation: Any, dispatcher: Any) -> None:
        dispatcher.refusal = RequestRefused(RefusalCode.EXISTS, "is in use", "request_id")
        error = await failure_of(generation.Generate(pb.GenerateRequest(prompt="a")))
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
        assert "BadRequest" in details_of(error)

    async def test_refusals_name_the_field_to_people_and_programs(
        self, generation: Any, dispatcher: Any, spell: Spell
    ) -> None:
        bad = pb.GenerateRequest(prompt="a", sampling=pb.SamplingParameters(top_p=2))
        error = await failure_of(generation.Generate(bad))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details().startswith("sampling.top_p: is 2.0")
        details = details_of(error)
        request, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
        assert details["BadRequest"].Unpack(request)
        assert details["ErrorInfo"].Unpack(info)
        assert request.field_violations[0].field == info.metadata["field"] == "sampling.top_p"
        assert (info.reason, info.domain) == ("INVALID_ARGUMENT", "blockyard")
        assert "RetryInfo" not in details
        # The next request works.
        dispatcher.script = [spell("ok"), FinishReason.STOP]
        assert (await generation.Generate(pb.GenerateRequest(prompt="a"))).text == "ok"

    async def test_streams_refuse_alike(self, generation: Any) -> None:
        stream = generation.GenerateStream(pb.GenerateRequest(model="nope", prompt="a"))
        error = await failure_of(anext(aiter(stream)))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert "model: 'nope'" in error.details()

    async def test_overload_says_when_to_try_again(self, generation: Any, dispatcher: Any) -> None:
        dispatcher.refusal = RequestRefused(RefusalCode.EXHAUSTED, "4096 requests wait")
        error = await failure_of(generation.Generate(pb.GenerateRequest(prompt="a")))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        retry = error_details_pb2.RetryInfo()
        assert details_of(error)["RetryInfo"].Unpack(retry)
        assert retry.retry_delay.seconds == 1

    async def test_a_failure_in_mid_stream(
        self, generation: Any, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("a"), ValueError("/secret/place")]
        stream = aiter(generation.GenerateStream(pb.GenerateRequest(prompt="a")))
        assert (await anext(stream)).text == "a"
        error = await failure_of(anext(stream))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in error.details()

    async def test_five_megabytes_are_refused_by_name(self, generation: Any) -> None:
        error = await failure_of(generation.Generate(pb.GenerateRequest(prompt="x" * 5_000_000)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details().startswith("prompt: has 5,000,000 bytes")


class TestMalformedBytes:
    @pytest.mark.parametrize(
        ("method", "message"),
        [
            (GENERATE, "blockyard.v1.GenerateRequest"),
            ("/blockyard.v1.Cluster/GetModel", "blockyard.v1.GetModelRequest"),
            ("/blockyard.v1.Cluster/GetLedger", "blockyard.v1.GetLedgerRequest"),
            ("/grpc.health.v1.Health/Check", "grpc.health.v1.HealthCheckRequest"),
        ],
    )
    @pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x7f", b"\x0a\x02a"])
    async def test_they_are_the_callers_mistake(
        self, channel: Any, method: str, message: str, data: bytes
    ) -> None:
        error = await failure_of(channel.unary_unary(method)(data))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == f"request: not a valid {message} message"

    async def test_text_that_is_not_utf8(self, channel: Any) -> None:
        error = await failure_of(channel.unary_unary(GENERATE)(b"\x0a\x02\xff\xfe"))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT

    async def test_in_a_stream_too(self, channel: Any) -> None:
        error = await failure_of(anext(aiter(channel.unary_stream(STREAM)(b"\xff"))))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


class TestLeaving:
    @staticmethod
    async def stream_of(dispatcher: Any) -> Any:
        while not dispatcher.streams:
            await asyncio.sleep(0.001)
        return dispatcher.streams[0]

    async def test_cancelling_a_stream_aborts(
        self, generation: Any, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("a"), "hang"]
        call = generation.GenerateStream(pb.GenerateRequest(prompt="a"))
        await call.read()
        call.cancel()
        await asyncio.wait_for(dispatcher.streams[0].aborted.wait(), 10)

    async def test_leaving_before_the_first_byte_aborts(
        self, generation: Any, dispatcher: Any
    ) -> None:
        dispatcher.script = ["hang"]
        call = generation.GenerateStream(pb.GenerateRequest(prompt="a"))
        reading = asyncio.ensure_future(call.read())
        stream = await self.stream_of(dispatcher)
        call.cancel()
        await asyncio.wait_for(stream.aborted.wait(), 10)
        with pytest.raises(asyncio.CancelledError):
            await reading

    async def test_a_vanished_connection_aborts(
        self, address: str, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("a"), "hang"]
        async with grpc.aio.insecure_channel(address) as channel:
            stub = stub_of(generation_pb2_grpc.GenerationStub, channel)
            await stub.GenerateStream(pb.GenerateRequest(prompt="a")).read()
        await asyncio.wait_for(dispatcher.streams[0].aborted.wait(), 10)

    async def test_a_deadline_aborts_a_plain_call(self, generation: Any, dispatcher: Any) -> None:
        dispatcher.script = ["hang"]
        error = await failure_of(generation.Generate(pb.GenerateRequest(prompt="a"), timeout=0.05))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        for stream in dispatcher.streams:  # none when the deadline came before the request
            await asyncio.wait_for(stream.aborted.wait(), 10)

    async def test_a_reader_that_stops_reading_is_not_read_for(
        self, generation: Any, dispatcher: Any, spell: Spell
    ) -> None:
        # More than a connection's window: the server must wait, and notice when it is over.
        dispatcher.script = [*([spell("x" * 2000)] * 500), "hang"]
        call = generation.GenerateStream(pb.GenerateRequest(prompt="a"))
        await call.read()
        call.cancel()
        await asyncio.wait_for(dispatcher.streams[0].aborted.wait(), 10)

    async def test_many_dropped_streams_are_all_aborted(
        self, generation: Any, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [*([token] for token in spell("abcde")), "hang"]

        async def drop(after: int) -> None:
            call = generation.GenerateStream(pb.GenerateRequest(prompt="a"))
            for _ in range(after):
                await call.read()
            call.cancel()

        await asyncio.gather(*(drop(index % 6) for index in range(60)))
        dispatcher.script = [spell("fine"), FinishReason.STOP]
        assert (await generation.Generate(pb.GenerateRequest(prompt="a"))).text == "fine"
        for stream in dispatcher.streams:
            if not stream.ended:
                await asyncio.wait_for(stream.aborted.wait(), 10)
