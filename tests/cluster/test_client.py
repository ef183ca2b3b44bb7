import asyncio
from collections.abc import Callable
from contextlib import aclosing, closing
from typing import Any

import pytest

from blockyard.cluster.client import (
    BlockingClient,
    GenerationClient,
    ServerError,
    Settings,
    build_request,
    server_address,
)
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason

Spell = Callable[[str], list[int]]


class TestRequests:
    def test_only_given_settings_are_sent(self) -> None:
        request = build_request(prompt="a", settings=Settings(seed=0, stop=["x"]))
        assert request == pb.GenerateRequest(
            prompt="a", sampling=pb.SamplingParameters(seed=0, stop=["x"])
        )

    def test_every_setting_has_its_field(self) -> None:
        simple: dict[str, Any] = {
            name: 1 for name in Settings.__slots__ if getattr(Settings(), name) is None
        }
        del simple["structure"], simple["tenant"]
        texts: dict[str, Any] = {"stop": ("x",), "tenant": "t"}
        sampling = build_request(prompt="a", settings=Settings(**simple, **texts)).sampling
        assert {name: getattr(sampling, name) for name in simple} == simple
        assert (list(sampling.stop), sampling.tenant) == (["x"], "t")

    def test_inputs_of_each_kind(self) -> None:
        assert build_request(token_ids=[1, 2]).tokens.ids == [1, 2]
        assert build_request(token_ids=[]).WhichOneof("input") == "tokens"
        chat = build_request(messages=[{"role": "user", "content": "a"}]).chat
        assert (chat.messages[0].role, chat.messages[0].content) == ("user", "a")

    @pytest.mark.parametrize("given", [{}, {"prompt": "a", "token_ids": [1]}])
    def test_exactly_one_input(self, given: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="exactly one"):
            build_request(**given)

    def test_the_address_given_goes_before_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("BLOCKYARD_ADDRESS", raising=False)
        assert server_address() == "127.0.0.1:50051"
        monkeypatch.setenv("BLOCKYARD_ADDRESS", "there:1")
        assert server_address() == "there:1"
        assert server_address("here:2") == "here:2"


class TestAsynchronous:
    async def test_every_call(self, served_address: str, dispatcher: Any, spell: Spell) -> None:
        dispatcher.script = [spell("good "), spell("day"), FinishReason.STOP]
        request = build_request(prompt="hello")
        async with GenerationClient(served_address) as client:
            assert (await client.generate(request)).text == "good day"
            chunks = [chunk.text async for chunk in client.stream(request)]
            assert chunks == ["good ", "day", ""]
            assert (await client.ledger()).groups[0].blocks.total == 10
            assert (await client.model("small")).context_tokens == 128

    async def test_leaving_a_stream_cancels_it(
        self, served_address: str, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("a"), "hang"]
        async with GenerationClient(served_address) as client:
            stream = client.stream(build_request(prompt="a"))
            async with aclosing(stream):
                assert (await anext(stream)).text == "a"
        while not dispatcher.streams[0].aborts:
            await asyncio.sleep(0.001)

    async def test_refusals_carry_the_field(self, served_address: str) -> None:
        request = build_request(prompt="a", settings=Settings(temperature=-1))
        async with GenerationClient(served_address) as client:
            with pytest.raises(ServerError) as caught:
                await client.generate(request)
            assert caught.value.code == "INVALID_ARGUMENT"
            assert caught.value.field == "sampling.temperature"
            assert caught.value.reached
            with pytest.raises(ServerError, match=r"sampling\.temperature"):
                await anext(aiter(client.stream(request)))


class TestBlocking:
    def test_a_stream_and_the_books(
        self, served_address: str, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("good "), spell("day"), FinishReason.STOP]
        with BlockingClient(served_address) as client:
            text = [chunk.text for chunk in client.stream(build_request(prompt="a"))]
            assert text == ["good ", "day", ""]
            assert client.ledger().groups[0].blocks.free == 5

    def test_a_deadline(self, served_address: str, dispatcher: Any) -> None:
        dispatcher.script = ["hang"]
        with (
            BlockingClient(served_address, timeout_seconds=0.05) as client,
            closing(client.stream(build_request(prompt="a"))) as chunks,
            pytest.raises(ServerError, match="DEADLINE_EXCEEDED"),
        ):
            next(chunks)

    def test_nobody_there(self) -> None:
        with BlockingClient("127.0.0.1:1") as client:
            with pytest.raises(ServerError) as caught:
                client.ledger()
            assert (caught.value.code, caught.value.reached) == ("UNAVAILABLE", False)

    def test_a_server_that_is_not_ready_was_reached(
        self, served_address: str, dispatcher: Any
    ) -> None:
        dispatcher.served = ()
        with BlockingClient(served_address) as client:
            with pytest.raises(ServerError) as caught:
                next(iter(client.stream(build_request(prompt="a"))))
            assert (caught.value.code, caught.value.reached) == ("UNAVAILABLE", True)
