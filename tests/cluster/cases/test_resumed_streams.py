"""Streams that are cut off and read on: no token is lost, none comes twice."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from blockyard.cluster.client import BlockingClient, GenerationClient, ServerError, build_request
from blockyard.cluster.client_streams import open_chunks
from blockyard.cluster.request.whole_answer import WholeAnswer
from blockyard.protos import generation_pb2 as pb

PROMPT = [(29 * n + 3) % 256 for n in range(24)]


def asked(name: str = "", grace: float | None = 30.0, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=name,
        tokens=pb.TokenIds(ids=PROMPT),
        sampling=pb.SamplingParameters(max_tokens=60, ignore_eos=True, seed=1, **fields),
        resume_seconds=grace,
    )


def whole(chunks: list[pb.GenerateChunk]) -> list[tuple[str, list[int], int]]:
    answer = WholeAnswer()
    for chunk in chunks:
        answer.add(chunk)
    return [(c.text, list(c.token_ids), c.finish_reason) for c in answer.response().choices]


class Proxy:
    """Passes bytes on to a server, and cuts the first connections after so many answered bytes."""

    def __init__(self, target: str, cuts: list[int]) -> None:
        self._host, port = target.split(":")
        self._port = int(port)
        self.cuts = cuts

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()

    async def _pass(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(self._host, self._port)
        left = self.cuts.pop(0) if self.cuts else 10**9

        async def forward() -> None:
            while data := await client.read(4096):
                to_server.write(data)

        forwarding = asyncio.create_task(forward())
        while left > 0 and (data := await server.read(min(left, 4096))):
            left -= len(data)
            to_client.write(data)
        forwarding.cancel()
        await asyncio.gather(forwarding, return_exceptions=True)
        to_client.close()
        to_server.close()


@pytest.fixture
async def cut(rig: Any) -> AsyncIterator[Any]:
    """The address of the server behind a line that breaks after so many bytes, and so on."""
    proxies: list[Proxy] = []

    async def cut(*after_bytes: int) -> str:
        proxies.append(Proxy(rig.address, list(after_bytes)))
        return await proxies[-1].start()

    yield cut
    for proxy in proxies:
        await proxy.stop()


@pytest.mark.parametrize("n", [1, 3])
async def test_every_place_is_one_to_read_on_from(rig: Any, n: int) -> None:
    chunks = [chunk async for chunk in rig.client.stream(asked("mine", n=n))]
    for border in range(len(chunks) + 1):
        seen = sum(len(chunk.token_ids) for chunk in chunks[:border])
        ended = {c.choice for c in chunks[:border] if c.finish_reason}
        resume = pb.ResumeRequest(request_id="mine", tokens_seen=seen)
        call = open_chunks(rig.client._channel, resume, 60, ())
        rest = [chunk async for chunk in call if chunk.choice not in ended]
        assert whole([*chunks[:border], *rest]) == whole(chunks)


async def test_the_client_reads_on_when_its_line_breaks(rig: Any, cut: Any) -> None:
    plain = whole([chunk async for chunk in rig.client.stream(asked(grace=None, n=2))])
    for after in ([400], [1500, 300], [900, 1200, 1500]):
        async with GenerationClient(await cut(*after), timeout_seconds=60) as client:
            chunks = [chunk async for chunk in client.stream(asked(n=2))]
        assert whole(chunks) == plain
        assert len({chunk.request_id for chunk in chunks}) == 1


async def test_so_does_the_one_without_an_event_loop(rig: Any, cut: Any) -> None:
    plain = whole([chunk async for chunk in rig.client.stream(asked(grace=None))])
    address = await cut(1000)

    def read() -> list[pb.GenerateChunk]:
        with BlockingClient(address, timeout_seconds=60) as client:
            return list(client.stream(asked()))

    assert whole(await asyncio.to_thread(read)) == plain


async def test_who_did_not_ask_for_it_is_cut_off(rig: Any, cut: Any) -> None:
    async with GenerationClient(await cut(900), timeout_seconds=60) as client:
        with pytest.raises(ServerError):
            [chunk async for chunk in client.stream(asked(grace=None))]
    await rig.drained()


async def test_leaving_on_purpose_ends_the_request_at_once(rig: Any) -> None:
    stream = rig.client.stream(asked("mine"))
    await anext(stream)
    await stream.aclose()
    await rig.drained()


async def test_a_cut_without_a_return_ends_after_the_grace(rig: Any) -> None:
    request = asked("mine", grace=0.01)
    request.sampling.max_tokens = 230
    call = open_chunks(rig.client._channel, request, 60, ())
    await anext(aiter(call))
    call.cancel()
    await rig.drained()


async def test_over_http_events_have_ids_and_are_read_on(rig: Any) -> None:
    body = {
        "prompt": PROMPT,
        "max_tokens": 40,
        "ignore_eos": True,
        "stream": True,
        "seed": 1,
        "stream_options": {"include_usage": True},
    }
    body |= {"request_id": "mine", "resume_seconds": 30}
    answer = await rig.web.post("/v1/completions", json=body)
    events = answer.text.removesuffix("\n\n").split("\n\n")
    assert [event.split("\n")[0] for event in events] == [
        f"id: mine:{n}" for n in range(1, len(events) + 1)
    ]
    for seen in (1, len(events) // 2, len(events) - 1, len(events)):
        header = {"last-event-id": f"mine:{seen}"}
        again = await rig.web.post("/v1/completions", json=body, headers=header)
        assert again.text.removesuffix("\n\n").split("\n\n") == (events[seen:] or [""])
    assert json.loads(events[-2].split("data: ")[1])["usage"]["completion_tokens"] == 40


async def test_over_http_a_cut_stream_is_read_on(rig: Any) -> None:
    body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "stream": True, "seed": 1}
    plain = (await rig.web.post("/v1/completions", json=body)).text
    body["resume_seconds"] = 30
    events: list[str] = []
    async with rig.web.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.aiter_lines()
        while len(events) < 20:
            events.append(await anext(lines))
    last = [line for line in events if line.startswith("id: ")][-1].removeprefix("id: ")
    # The last id may stand before an event that did not come as a whole.
    name, _, number = last.rpartition(":")
    seen = int(number) - (0 if events[-1] == "" else 1)
    header = {"last-event-id": f"{name}:{seen}"}
    rest = (await rig.web.post("/v1/completions", json=body, headers=header)).text
    told = [line for line in events if line.startswith("data: ")][:seen]
    told += [line for line in rest.split("\n") if line.startswith("data: ")]

    def text(lines: list[str]) -> str:
        pieces = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return "".join(piece["choices"][0]["text"] for piece in pieces)

    assert text(told) == text(plain.split("\n"))
    assert told[-1] == "data: [DONE]"


async def test_mistakes_are_the_caller_s(rig: Any) -> None:
    for request in (asked(grace=0.0), asked(grace=1e9)):
        with pytest.raises(ServerError) as caught:
            [chunk async for chunk in rig.client.stream(request)]
        assert (caught.value.code, caught.value.field) == ("INVALID_ARGUMENT", "resume_seconds")
    with pytest.raises(ServerError, match="is for streams"):
        await rig.client.generate(asked())
    for place, code in (
        (pb.ResumeRequest(request_id="nobody"), grpc.StatusCode.NOT_FOUND),
        (pb.ResumeRequest(request_id="a b"), grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await anext(aiter(open_chunks(rig.client._channel, place, 60, ())))
        assert failed.value.code() is code
    body: dict[str, Any] = {"prompt": "a", "max_tokens": 2}
    for extra, header, status in (
        ({"resume_seconds": 5}, {}, 400),
        ({"resume_seconds": 0, "stream": True}, {}, 400),
        ({"stream": True}, {"last-event-id": "x"}, 400),
        ({"stream": True}, {"last-event-id": "nobody:3"}, 404),
    ):
        answer = await rig.web.post("/v1/completions", json={**body, **extra}, headers=header)
        assert answer.status_code == status
        assert answer.json()["error"]["param"]


def test_requests_ask_for_it() -> None:
    assert build_request(prompt="a", resume_seconds=5).resume_seconds == 5
    assert not build_request(prompt="a").HasField("resume_seconds")
