"""Text completions, asked by OpenAI's own client: prompts of all kinds, echo, log probabilities."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.scheduler.request import FinishReason, RequestUpdate
from blockyard.scheduler.sampling import TokenLogprobs

Spell = Callable[[str], list[int]]


async def _joined(stream: Any) -> dict[int, tuple[str, str | None]]:
    """Text and end of each choice of a stream."""
    told: dict[int, tuple[str, str | None]] = {}
    async for chunk in stream:
        for choice in chunk.choices:
            text, reason = told.get(choice.index, ("", None))
            assert reason is None, "nothing follows an end"
            told[choice.index] = text + choice.text, choice.finish_reason
    return told


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_have_their_answers_in_order(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell, stream: bool
) -> None:
    dispatcher.scripts = {
        0: [spell("ze"), spell("ro"), FinishReason.STOP],
        1: [spell("1"), FinishReason.LENGTH],
    }
    asked: dict[str, Any] = {"stream": stream, "n": 2}
    prompts = ["one", "two", "three"]
    answer = await client.completions.create(model="small", prompt=prompts, **asked)
    if stream:
        told = await _joined(answer)
    else:
        assert [choice.index for choice in answer.choices] == list(range(6))
        told = {choice.index: (choice.text, choice.finish_reason) for choice in answer.choices}
        assert answer.usage.completion_tokens == 3 * 5
        assert answer.usage.prompt_tokens == sum(
            len(spec.prompt_token_ids) for _, spec in dispatcher.submitted
        )
    assert told == {
        index: ("zero", "stop") if index % 2 == 0 else ("1", "length") for index in range(6)
    }
    assert len(dispatcher.submitted) == 3


async def test_tokens_are_taken_as_they_are(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = [spell("x"), FinishReason.STOP]
    await client.completions.create(model="small", prompt=[5, 6, 7], max_tokens=3)
    await client.completions.create(model="small", prompt=[[5], [6, 7]], max_tokens=3)
    prompts = [spec.prompt_token_ids for _, spec in dispatcher.submitted]
    assert prompts[0] == (5, 6, 7)
    assert sorted(prompts[1:]) == [(5,), (6, 7)]


async def test_sixteen_tokens_unless_asked_otherwise(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = [spell("x"), FinishReason.STOP]
    await client.completions.create(model="small", prompt="a")
    assert dispatcher.submitted[0][1].sampling.max_tokens == 16


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_log_probabilities(
    client: openai.AsyncOpenAI,
    dispatcher: Any,
    tokenizer: ModelTokenizer,
    spell: Spell,
    stream: bool,
) -> None:
    prompt = tokenizer.encode_prompt("hello")
    scores = tuple(TokenLogprobs(-1.0 - n, 2, (65,), (-0.5,)) for n in range(len(prompt) - 1))
    own = TokenLogprobs(-9.0, 3, (65,), (-0.25,))
    tokens = spell("!?")
    dispatcher.script = [
        RequestUpdate("r", (), prompt_logprobs=scores),
        RequestUpdate("r", (tokens[0],), logprobs=(own,)),
        RequestUpdate("r", (tokens[1],), FinishReason.LENGTH, logprobs=(own,)),
    ]
    asked: dict[str, Any] = {"stream": stream}
    answer = await client.completions.create(
        model="small", prompt="hello", echo=True, logprobs=1, max_tokens=2, **asked
    )
    parts = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
    assert "".join(part.text for part in parts) == "hello!?"
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    assert "".join(text for each in logprobs for text in each.tokens) == "hello!?"
    expected = [None, *(score.logprob for score in scores), -9.0, -9.0]
    assert [value for each in logprobs for value in each.token_logprobs] == expected
    offsets = [value for each in logprobs for value in each.text_offset]
    assert offsets[0] == 0
    assert offsets[-2:] == [5, 6]
    assert offsets == sorted(offsets)
    tops = [value for each in logprobs for value in each.top_logprobs]
    assert tops[0] is None
    assert tops[-1] == {tokenizer.spell(65).decode(): -0.25, "?": -9.0}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [10**12]}, "prompt[0]"),
        ({"prompt": ["x", 5]}, "prompt[1]"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [1] * 128}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
async def test_mistakes_are_the_callers_and_named(
    plain: Any, dispatcher: Any, fields: dict[str, Any], param: str
) -> None:
    answer = await plain.post("/v1/completions", json={"model": "small", "prompt": "a", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert all(stream.aborts or stream.ended for stream in dispatcher.streams)


async def test_one_bad_prompt_frees_the_others(plain: Any, dispatcher: Any, spell: Spell) -> None:
    dispatcher.script = [spell("x"), "hang"]
    answer = await plain.post(
        "/v1/completions", json={"model": "small", "prompt": ["fine", "", "fine too"]}
    )
    assert answer.status_code == 400
    assert all(stream.aborts == 1 for stream in dispatcher.streams)
