import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from blockyard.cluster.grpc_api import ClusterApi, GenerationApi, HealthApi
from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.request.malformed_message import MalformedMessage
from blockyard.cluster.request.request_service import RequestService
from blockyard.cluster.request.token_service import TokenService
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import cluster_pb2
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import RefusalCode, RequestRefused

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def answers(dispatcher: Any, states: list[bool]) -> None:
    """Let the dispatcher say these one after the other, then the last for ever."""
    left: Iterator[bool] = iter(states)

    async def ready() -> bool:
        return next(left, states[-1])

    dispatcher.ready = ready


class TestHealth:
    async def test_a_watch_tells_changes_only(self, dispatcher: Any) -> None:
        answers(dispatcher, [True, True, False, False, False, True])
        api = HealthApi(dispatcher, watch_interval_seconds=0)
        async with aclosing(api.watch(health_pb2.HealthCheckRequest())) as states:
            told = [(await anext(states)).status for _ in range(3)]
        assert told == [SERVING, NOT_SERVING, SERVING]

    async def test_no_answer_in_time_is_an_answer(self, dispatcher: Any) -> None:
        async def ready() -> bool:
            await asyncio.Event().wait()
            return True

        dispatcher.ready = ready
        api = HealthApi(dispatcher, answer_within_seconds=0.01)
        assert (await api.check(health_pb2.HealthCheckRequest())).status == NOT_SERVING

    async def test_the_list_has_every_service(self, dispatcher: Any) -> None:
        listed = await HealthApi(dispatcher).list(health_pb2.HealthListRequest())
        assert set(listed.statuses) == {"", "blockyard.v1.Generation", "blockyard.v1.Cluster"}
        assert {state.status for state in listed.statuses.values()} == {SERVING}


class TestCluster:
    @pytest.mark.parametrize(
        ("failure", "code"),
        [
            (RequestRefused(RefusalCode.UNAVAILABLE, "gone"), ApiCode.UNAVAILABLE),
            (OSError("/secret/place"), ApiCode.INTERNAL),
        ],
    )
    async def test_books_that_cannot_be_had(
        self,
        dispatcher: Any,
        tokenizers: dict[str, ModelTokenizer],
        failure: Exception,
        code: ApiCode,
    ) -> None:
        async def reports(audit: bool, memory: bool) -> tuple[()]:
            raise failure

        dispatcher.reports = reports
        with pytest.raises(ApiError) as caught:
            await ClusterApi(dispatcher, tokenizers).get_ledger(cluster_pb2.GetLedgerRequest())
        assert caught.value.code is code
        assert "secret" not in caught.value.text


class TestGeneration:
    async def test_malformed_messages_are_refused(
        self, dispatcher: Any, tokenizers: dict[str, ModelTokenizer]
    ) -> None:
        api = GenerationApi(
            GenerationService(dispatcher, tokenizers),
            TokenService(dispatcher, tokenizers),
            RequestService(dispatcher),
        )
        malformed = MalformedMessage("blockyard.v1.GenerateRequest")
        with pytest.raises(ApiError, match=r"request: not a valid blockyard\.v1\.GenerateRequest"):
            await api.generate(malformed)
        with pytest.raises(ApiError, match="request: not a valid"):
            await anext(api.generate_stream(malformed))

    async def test_leaving_a_stream_reaches_the_engine(
        self, dispatcher: Any, tokenizers: dict[str, ModelTokenizer]
    ) -> None:
        dispatcher.script = [[5], [5], "hang"]
        api = GenerationApi(
            GenerationService(dispatcher, tokenizers),
            TokenService(dispatcher, tokenizers),
            RequestService(dispatcher),
        )
        async with aclosing(api.generate_stream(pb.GenerateRequest(prompt="a"))) as chunks:
            await anext(chunks)
        assert dispatcher.streams[0].aborts == 1
