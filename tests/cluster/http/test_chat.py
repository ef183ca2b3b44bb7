"""Chat completions, asked by OpenAI's own client."""

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest

from blockyard.scheduler.request import FinishReason, RequestUpdate
from blockyard.scheduler.sampling import TokenLogprobs

Spell = Callable[[str], list[int]]
ASKED: list[Any] = [{"role": "user", "content": "hello"}]


async def test_the_whole_answer(client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell) -> None:
    dispatcher.script = [spell("good "), [*spell("day"), 2], FinishReason.STOP]
    answer = await client.chat.completions.create(model="small", messages=ASKED)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "small"
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content) == ("assistant", "good day")
    assert choice.logprobs is None
    assert answer.usage is not None
    _, spec = dispatcher.submitted[0]
    assert answer.usage.prompt_tokens == len(spec.prompt_token_ids)
    assert answer.usage.completion_tokens == 9
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 9
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_a_stream_joins_to_the_whole(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    tokens = spell("one \N{GRINNING FACE} two")
    dispatcher.script = [[token] for token in tokens] + [FinishReason.LENGTH]
    stream = await client.chat.completions.create(
        model="small", messages=ASKED, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == "one \N{GRINNING FACE} two"
    assert not any("\N{REPLACEMENT CHARACTER}" in text for text in texts)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(tokens)


async def test_a_stream_tells_no_usage_unasked(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = [spell("x"), FinishReason.STOP]
    stream = await client.chat.completions.create(model="small", messages=ASKED, stream=True)
    assert not any([chunk.usage for chunk in [c async for c in stream]])


async def test_every_option_reaches_the_engine(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell, tokenizer: Any
) -> None:
    dispatcher.script = [spell("x"), FinishReason.STOP]
    await client.chat.completions.create(
        model="small",
        messages=[
            {"role": "developer", "content": "be brief"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "d", "name": "ann"},
        ],
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.75,
        n=2,
        stop=["one", "two"],
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"5": -100, "6": 3},
        logprobs=True,
        top_logprobs=4,
        seed=-1,
        user="somebody",
        metadata={"a": "b"},
        extra_body={
            "top_k": -1,
            "min_p": 0.25,
            "typical_p": 0.5,
            "repetition_penalty": 1.5,
            "min_tokens": 3,
            "ignore_eos": True,
            "stop_token_ids": [9],
            "allowed_token_ids": [5, 6, 9],
            "bad_words": ["fox"],
            "include_stop_str_in_output": True,
            "priority": 4,
            "prompt_logprobs": 1,
        },
    )
    _, spec = dispatcher.submitted[0]
    assert spec.num_choices == 2
    assert spec.priority == 4
    assert spec.prompt_token_ids == tokenizer.encode_chat(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "ab"},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "d"},
        ]
    )
    params = spec.sampling
    assert (params.max_tokens, params.min_tokens) == (7, 3)
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.75, 0)
    assert (params.min_p, params.typical_p) == (0.25, 0.5)
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
    assert params.repetition_penalty == 1.5
    assert params.logit_bias == ((5, -100.0), (6, 3.0))
    assert params.allowed_token_ids == (5, 6, 9)
    assert params.stop_token_ids == (9,)
    assert len(params.bad_words) == 2
    assert (params.logprobs, params.prompt_logprobs) == (4, 1)
    assert params.seed == 2**64 - 1


def _scored(tokens: list[int], end: FinishReason | None = None) -> RequestUpdate:
    entries = tuple(TokenLogprobs(-1.0 - n, 1, (65, 66), (-0.5, -2.0)) for n in range(len(tokens)))
    return RequestUpdate("r", tuple(tokens), end, logprobs=entries)


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_each_tokens_own(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell, stream: bool
) -> None:
    tokens = spell("a\N{GRINNING FACE}")
    dispatcher.script = [_scored(tokens), FinishReason.LENGTH]
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "stream": stream}
    answer = await client.chat.completions.create(model="small", messages=ASKED, **asked)
    if stream:
        told = [
            entry
            async for chunk in answer
            if chunk.choices and chunk.choices[0].logprobs is not None
            for entry in chunk.choices[0].logprobs.content or []
        ]
    else:
        told = answer.choices[0].logprobs.content
    assert [entry.logprob for entry in told] == [-1.0, -2.0, -3.0, -4.0, -5.0]
    assert bytes(byte for entry in told for byte in entry.bytes or []).decode() == "a\U0001f600"
    assert told[1].token == "bytes:\\xf0"
    assert [top.logprob for top in told[4].top_logprobs] == [-0.5, -2.0]


async def test_what_could_not_be_is_still_json(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    never = TokenLogprobs(float("-inf"), 9, (), ())
    dispatcher.script = [
        RequestUpdate("r", tuple(spell("x")), FinishReason.STOP, logprobs=(never,))
    ]
    answer = await client.chat.completions.create(model="small", messages=ASKED, logprobs=True)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert answer.choices[0].logprobs.content[0].logprob == -9999.0


@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_each_complete(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell, stream: bool
) -> None:
    dispatcher.scripts = {
        n: [*([t] for t in spell(f"answer {n}" * (n + 1))), FinishReason.STOP] for n in range(4)
    }
    texts = {n: "" for n in range(4)}
    reasons: dict[int, str] = {}
    asked: dict[str, Any] = {"n": 4, "stream": stream}
    answer = await client.chat.completions.create(model="small", messages=ASKED, **asked)
    if stream:
        async for chunk in answer:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.finish_reason:
                    assert choice.index not in reasons
                    reasons[choice.index] = choice.finish_reason
    else:
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        texts = {choice.index: choice.message.content for choice in answer.choices}
        reasons = {choice.index: choice.finish_reason for choice in answer.choices}
    assert texts == {n: f"answer {n}" * (n + 1) for n in range(4)}
    assert set(reasons.values()) == {"stop"}
    assert len(reasons) == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_has_the_request_aborted(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell, stream: bool
) -> None:
    dispatcher.script = [spell("a"), "hang"] if stream else ["hang"]

    async def ask() -> None:
        asked: dict[str, Any] = {"stream": stream}
        answer = await client.chat.completions.create(model="small", messages=ASKED, **asked)
        async for _ in answer:
            pass

    asking = asyncio.create_task(ask())
    async with asyncio.timeout(60):
        while not dispatcher.streams:
            await asyncio.sleep(0.005)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await dispatcher.streams[0].aborted.wait()
    assert dispatcher.streams[0].aborts == 1
