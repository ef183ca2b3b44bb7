"""O14 to O16, O28: clients that walk away, and two of one name."""

import asyncio
from typing import Any

import pytest

from blockyard.cluster.client import GenerationClient, ServerError
from blockyard.protos import generation_pb2 as pb

PROMPT = [(29 * n + 3) % 256 for n in range(24)]


def asked(max_tokens: int = 200, request_id: str = "", **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=request_id,
        tokens=pb.TokenIds(ids=PROMPT),
        sampling=pb.SamplingParameters(max_tokens=max_tokens, ignore_eos=True, seed=1, **fields),
    )


async def _leave_after(rig: Any, chunks: int) -> None:
    stream = rig.client.stream(asked())
    for _ in range(chunks):
        await anext(stream)
    await stream.aclose()


async def test_o14_clients_that_walk_away_leave_nothing(rig: Any) -> None:
    oracle = await rig.client.generate(asked(max_tokens=20))
    for _ in range(10):
        await asyncio.gather(*(_leave_after(rig, (0, 1, 5)[n % 3]) for n in range(12)))
    await rig.drained()
    for _ in range(20):
        assert (await rig.client.generate(asked(max_tokens=20))).token_ids == oracle.token_ids


async def test_o14_the_same_over_http(rig: Any) -> None:
    body = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "stream": True}

    async def leave(lines: int) -> None:
        async with rig.web.stream("POST", "/v1/completions", json=body) as answer:
            reader = answer.aiter_lines()
            for _ in range(lines):
                await anext(reader)

    for _ in range(5):
        await asyncio.gather(*(leave((0, 1, 5)[n % 3]) for n in range(9)))
    await rig.drained()
    assert (await rig.ask("http-whole", PROMPT, max_tokens=3)).completion_tokens <= 3


async def test_o15_nothing_comes_after_an_abort_whenever_it_is(make_rig: Any) -> None:
    rig = await make_rig(step_tokens=8, running=4)
    request = asked(max_tokens=40)
    request.tokens.ids.extend(PROMPT * 2)
    for steps in range(25):
        begun = rig.dispatcher.engine.ledger().step
        stream = rig.client.stream(request)
        reading = asyncio.create_task(anext(stream))
        async with asyncio.timeout(60):
            while rig.dispatcher.engine.ledger().step < begun + steps and not reading.done():
                await asyncio.sleep(0.001)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stream.aclose()
        await rig.drained()


async def test_o16_leaving_a_call_that_does_not_stream(rig: Any) -> None:
    """The engine stops soon after, and not because the answer was complete."""
    for leave in ("grpc", "http"):
        begun = rig.dispatcher.engine.ledger().step
        body = {"prompt": PROMPT, "max_tokens": 230, "ignore_eos": True}
        call: Any = (
            rig.client.generate(asked(max_tokens=230))
            if leave == "grpc"
            else rig.web.post("/v1/completions", json=body)
        )
        calling = asyncio.create_task(call)
        async with asyncio.timeout(60):
            while rig.dispatcher.engine.ledger().step < begun + 5:
                await asyncio.sleep(0.001)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await rig.drained()
        assert rig.dispatcher.engine.ledger().step < begun + 225


async def test_o16_a_deadline_of_a_unary_call(rig: Any) -> None:
    async with GenerationClient(rig.address, timeout_seconds=0.05) as hasty:
        with pytest.raises(ServerError) as error:
            while True:
                await hasty.generate(asked(max_tokens=230))
    assert error.value.code == "DEADLINE_EXCEEDED"
    await rig.drained()


async def test_o16_a_stream_with_logprobs_left_in_the_middle(rig: Any) -> None:
    stream = rig.client.stream(asked(logprobs=5))
    for _ in range(3):
        await anext(stream)
    await stream.aclose()
    await rig.drained()


async def test_o28_two_of_one_name_never_mix(rig: Any) -> None:
    """Names are the clients' own: the server keeps requests apart by ids that it makes."""
    one, other = asked(30, "same"), asked(30, "same", logprobs=0)
    other.tokens.ids.append(9)
    alone = [await rig.client.generate(request) for request in (one, other)]
    together = await asyncio.gather(*(rig.client.generate(request) for request in (one, other)))
    assert [a.token_ids for a in alone] == [t.token_ids for t in together]
    assert {answer.request_id for answer in together} == {"same"}
    stream = rig.client.stream(one)
    await anext(stream)
    await stream.aclose()
    again = await rig.client.generate(one)
    assert again.token_ids == alone[0].token_ids


async def test_o15_a_request_is_ended_by_its_name_and_says_so(rig: Any) -> None:
    """However it is asked for and whoever reads: one end, `abort`, and nothing behind it."""
    for n, way in enumerate(("grpc", "http")):
        stream = rig.client.stream(asked(max_tokens=230, request_id=f"mine-{n}"))
        chunks = [await anext(stream)]
        explained = await rig.client.explain(f"mine-{n}")
        assert [choice.state for choice in explained.choices] == ["running"]
        if way == "grpc":
            assert await rig.client.abort(f"mine-{n}")
        else:
            told = (await rig.web.get(f"/v1/requests/mine-{n}")).json()
            assert [choice["state"] for choice in told["choices"]] == ["running"]
            told = (await rig.web.delete(f"/v1/requests/cmpl-mine-{n}")).json()
            assert told == {"id": f"mine-{n}", "object": "request", "aborted": True}
        chunks += [chunk async for chunk in stream]
        assert [c.finish_reason for c in chunks if c.finish_reason] == [pb.FINISH_REASON_ABORT]
        assert chunks[-1].finish_reason
        assert not await rig.client.abort(f"mine-{n}")
        with pytest.raises(ServerError, match="NOT_FOUND"):
            await rig.client.explain(f"mine-{n}")
        assert (await rig.web.get(f"/v1/requests/mine-{n}")).status_code == 404


async def test_several_prompts_are_ended_by_the_one_name_that_their_answers_bear(rig: Any) -> None:
    """Whoever gave it, the client or the server."""
    body = {"prompt": [[1, 2], [3, 4], [5]], "max_tokens": 230, "n": 2, "ignore_eos": True}
    for named in ({"request_id": "mine"}, {}):
        calling = asyncio.create_task(rig.web.post("/v1/completions", json=body | named))
        async with asyncio.timeout(60):
            while rig.dispatcher.engine.num_requests < 3:
                await asyncio.sleep(0.002)
        (name,) = {spec.part_of for spec in rig.dispatcher._desk._specs.values()}
        assert named.get("request_id") in (None, name)
        told = (await rig.web.get(f"/v1/requests/cmpl-{name}")).json()
        numbers = [choice["index"] for choice in told["choices"]]
        assert len(set(numbers)) == len(numbers) and {0, 2, 4} <= set(numbers) <= set(range(6))
        told = (await rig.web.delete(f"/v1/requests/cmpl-{name}")).json()
        assert told["aborted"] is True
        answer = (await calling).json()
        assert answer["id"] == f"cmpl-{name}"
        assert [choice["index"] for choice in answer["choices"]] == list(range(6))
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"abort"}
        await rig.drained()


@pytest.mark.parametrize("name", ["cmpl-mine", "chatcmpl-cmpl-x", "resp_1", "cmpl-"])
async def test_a_name_that_looks_like_an_answer_s_id_is_a_name(rig: Any, name: str) -> None:
    for path in (name, f"cmpl-{name}"):
        stream = rig.client.stream(asked(max_tokens=230, request_id=name))
        await anext(stream)
        told = (await rig.web.get(f"/v1/requests/{path}")).json()
        assert [choice["state"] for choice in told["choices"]] == ["running"]
        told = (await rig.web.delete(f"/v1/requests/{path}")).json()
        assert told == {"id": name, "object": "request", "aborted": True}
        assert [c async for c in stream][-1].finish_reason == pb.FINISH_REASON_ABORT
    assert (await rig.web.delete(f"/v1/requests/{name}")).json()["aborted"] is False


async def test_o15_a_call_that_does_not_stream_is_ended_by_its_name(rig: Any) -> None:
    calling = asyncio.create_task(rig.client.generate(asked(max_tokens=230, request_id="mine")))
    async with asyncio.timeout(60):
        while not await rig.client.abort("mine"):
            await asyncio.sleep(0.002)
    answer = await calling
    assert answer.finish_reason == pb.FINISH_REASON_ABORT
    assert answer.usage.completion_tokens == len(answer.token_ids) < 230


async def test_names_that_cannot_be_are_refused(rig: Any) -> None:
    for name in ("", "a b"):
        with pytest.raises(ServerError) as caught:
            await rig.client.abort(name)
        assert (caught.value.code, caught.value.field) == ("INVALID_ARGUMENT", "request_id")
