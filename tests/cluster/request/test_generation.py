import asyncio
import itertools
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import (
    FinishReason,
    RefusalCode,
    RequestRefused,
    RequestUpdate,
    Timings,
)

Spell = Callable[[str], list[int]]


@pytest.fixture
def service(dispatcher: Any, tokenizers: dict[str, ModelTokenizer]) -> GenerationService:
    ticks = itertools.count()
    return GenerationService(dispatcher, tokenizers, clock=lambda: float(next(ticks)))


def asked(prompt: str = "hello", **sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        prompt=prompt, request_id="mine", sampling=pb.SamplingParameters(**sampling)
    )


async def chunks_of(
    service: GenerationService, request: pb.GenerateRequest
) -> list[pb.GenerateChunk]:
    return [chunk async for chunk in service.stream(request)]


async def failure_of(service: GenerationService, request: pb.GenerateRequest) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await service.generate(request)
    return caught.value


class TestAnswers:
    async def test_the_whole_answer(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        ids = spell("good day")
        dispatcher.script = [ids[:3], ids[3:4], [*ids[4:], 2], FinishReason.STOP]
        answer = await service.generate(asked())
        assert (answer.request_id, answer.model) == ("mine", "small")
        assert answer.text == "good day"
        assert list(answer.token_ids) == [*ids, 2]
        assert answer.finish_reason == pb.FINISH_REASON_STOP
        prompt = dispatcher.submitted[0][1].prompt_token_ids
        assert answer.usage == pb.Usage(
            prompt_tokens=len(prompt), cached_tokens=3, completion_tokens=len(ids) + 1
        )
        timings = answer.timings
        assert 0 < timings.first_token_seconds < timings.total_seconds
        assert (timings.queue_seconds, timings.prefill_seconds) == (0.1, 0.2)
        assert (timings.decode_seconds, timings.preemptions) == (0.3, 4)

    async def test_chunks_joined_are_the_whole_answer(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        ids = spell("a 😀 b")
        dispatcher.script = [*([token] for token in ids), FinishReason.LENGTH]
        chunks = await chunks_of(service, asked())
        answer = await service.generate(asked())
        assert "".join(chunk.text for chunk in chunks) == answer.text == "a 😀 b"
        assert [token for chunk in chunks for token in chunk.token_ids] == ids
        assert chunks[-1].usage == answer.usage
        reasons = [chunk.finish_reason for chunk in chunks]
        assert reasons == [0] * (len(chunks) - 1) + [pb.FINISH_REASON_LENGTH]
        assert not any(chunk.HasField("usage") for chunk in chunks[:-1])

    async def test_the_last_update_may_bring_tokens_too(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        last = RequestUpdate(
            "any", tuple(spell("ab")), FinishReason.STOP, timings=Timings(0, 0, 0, 0)
        )
        dispatcher.script = [last]
        (chunk,) = await chunks_of(service, asked())
        assert (chunk.text, chunk.finish_reason) == ("ab", pb.FINISH_REASON_STOP)

    async def test_an_empty_model_name_means_the_first(
        self, service: GenerationService, dispatcher: Any
    ) -> None:
        dispatcher.script = [FinishReason.ABORT]
        answer = await service.generate(asked())
        assert dispatcher.submitted[0][0] == "small"
        assert answer.finish_reason == pb.FINISH_REASON_ABORT

    async def test_an_ended_request_is_not_aborted(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("a"), FinishReason.STOP]
        await service.generate(asked())
        assert dispatcher.streams[0].aborts == 0


class TestStops:
    async def test_the_engine_is_told_and_later_tokens_do_not_count(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        ids = spell("abcdefghij")
        dispatcher.script = [ids[:4], ids[4:], "hang"]
        answer = await service.generate(asked(stop=["def"]))
        assert answer.text == "abc"
        assert answer.finish_reason == pb.FINISH_REASON_STOP
        assert list(answer.token_ids) == ids[:6]
        assert answer.usage.completion_tokens == 6
        assert dispatcher.streams[0].aborts == 1
        assert not answer.timings.HasField("queue_seconds")
        assert answer.timings.total_seconds > 0

    async def test_the_engine_is_told_before_the_client(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("abc"), "hang"]
        async for chunk in service.stream(asked(stop=["c"])):
            assert chunk.finish_reason == pb.FINISH_REASON_STOP
            assert dispatcher.streams[0].aborts == 1

    async def test_held_text_comes_out_at_the_end(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("abcd"), FinishReason.LENGTH]
        chunks = await chunks_of(service, asked(stop=["cdef"]))
        assert [chunk.text for chunk in chunks] == ["ab", "cd"]
        assert chunks[-1].finish_reason == pb.FINISH_REASON_LENGTH

    async def test_a_stop_in_the_last_update(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [RequestUpdate("any", tuple(spell("abc")), FinishReason.LENGTH)]
        answer = await service.generate(asked(stop=["b"]))
        assert (answer.text, answer.finish_reason) == ("a", pb.FINISH_REASON_STOP)
        assert dispatcher.streams[0].aborts == 0


class TestLeaving:
    async def test_closing_a_stream_aborts(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("a"), spell("b"), "hang"]
        async with aclosing(service.stream(asked())) as chunks:
            await anext(chunks)
        assert dispatcher.streams[0].aborts == 1

    @pytest.mark.parametrize("script", [["hang"], [[5], "hang"]])
    @pytest.mark.parametrize("streamed", [True, False])
    async def test_cancelling_a_call_aborts(
        self, service: GenerationService, dispatcher: Any, script: list[Any], streamed: bool
    ) -> None:
        dispatcher.script = script
        call = chunks_of(service, asked()) if streamed else service.generate(asked())
        task = asyncio.ensure_future(call)
        while not dispatcher.streams:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert dispatcher.streams[0].aborts == 1

    async def test_leaving_after_the_last_chunk_aborts_nothing(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("a"), FinishReason.STOP]
        async with aclosing(service.stream(asked())) as chunks:
            await anext(chunks)
            await anext(chunks)
        assert dispatcher.streams[0].aborts == 0


class TestFailures:
    async def test_an_unknown_model(self, service: GenerationService, dispatcher: Any) -> None:
        error = await failure_of(service, pb.GenerateRequest(model="nope", prompt="a"))
        assert (error.code, error.field) == (ApiCode.NOT_FOUND, "model")
        assert "small" in error.message
        assert not dispatcher.submitted

    async def test_no_model_yet(
        self, dispatcher: Any, tokenizers: dict[str, ModelTokenizer]
    ) -> None:
        service = GenerationService(dispatcher, {})
        assert (await failure_of(service, asked())).code is ApiCode.UNAVAILABLE
        dispatcher.served = ()
        service = GenerationService(dispatcher, tokenizers)
        assert (await failure_of(service, asked())).code is ApiCode.UNAVAILABLE

    @pytest.mark.parametrize(
        ("refusal", "code", "retry"),
        [
            (RefusalCode.INVALID, ApiCode.INVALID_ARGUMENT, False),
            (RefusalCode.EXHAUSTED, ApiCode.RESOURCE_EXHAUSTED, True),
            (RefusalCode.UNAVAILABLE, ApiCode.UNAVAILABLE, True),
        ],
    )
    async def test_refusals_keep_their_meaning(
        self,
        service: GenerationService,
        dispatcher: Any,
        refusal: RefusalCode,
        code: ApiCode,
        retry: bool,
    ) -> None:
        dispatcher.refusal = RequestRefused(refusal, "because", field="max_tokens")
        error = await failure_of(service, asked())
        assert (error.code, error.field, error.message) == (code, "sampling.max_tokens", "because")
        assert (error.retry_after_seconds is not None) is retry

    async def test_a_lost_engine(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("a"), RequestRefused(RefusalCode.UNAVAILABLE, "engine lost")]
        chunks = service.stream(asked())
        assert (await anext(chunks)).text == "a"
        with pytest.raises(ApiError, match="UNAVAILABLE: engine lost"):
            await anext(chunks)
        assert dispatcher.streams[0].aborts == 1

    async def test_a_stream_that_ends_without_a_word(
        self, service: GenerationService, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("a")]
        assert (await failure_of(service, asked())).code is ApiCode.UNAVAILABLE
        assert dispatcher.streams[0].aborts == 1

    async def test_a_row_that_could_not_be_sampled(
        self, service: GenerationService, dispatcher: Any
    ) -> None:
        dispatcher.script = [RequestUpdate("any", (), FinishReason.ERROR, error="no token is left")]
        error = await failure_of(service, asked())
        assert error.code is ApiCode.INTERNAL
        assert "no token is left" in error.message

    async def test_our_own_faults_are_logged_and_not_shown(
        self,
        service: GenerationService,
        dispatcher: Any,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        dispatcher.script = [OSError("/secret/place at 10.0.0.7:1234")]
        with caplog.at_level(logging.ERROR):
            error = await failure_of(service, asked())
        assert error.code is ApiCode.INTERNAL
        assert "secret" not in error.text
        assert error.incident in error.text
        assert error.incident in caplog.text
        assert "/secret/place" in caplog.text
        assert dispatcher.streams[0].aborts == 1
