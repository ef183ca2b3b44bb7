"""What goes with an answer's text: log probabilities, the prompt, what ended it."""

from collections.abc import Callable
from typing import Any

import pytest

from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason, RequestUpdate
from blockyard.scheduler.sampling import TokenLogprobs

Spell = Callable[[str], list[int]]


@pytest.fixture
def service(dispatcher: Any, tokenizers: dict[str, ModelTokenizer]) -> GenerationService:
    return GenerationService(dispatcher, tokenizers)


def asked(prompt: str = "hello", **sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt=prompt, sampling=pb.SamplingParameters(**sampling))


def _logprobs(number: int) -> TokenLogprobs:
    return TokenLogprobs(-0.5 * number, number + 1, (65, 66), (-0.25, -0.5))


def _news(tokens: list[int], begin: int = 0, end: FinishReason | None = None) -> RequestUpdate:
    logprobs = tuple(_logprobs(begin + index) for index in range(len(tokens)))
    return RequestUpdate("r", tuple(tokens), end, logprobs=logprobs)


async def test_logprobs_stay_with_their_tokens_however_these_come_together(
    service: GenerationService, dispatcher: Any, spell: Spell
) -> None:
    """Also while text is held back for a character or a stop text."""
    tokens = spell("a\N{GRINNING FACE}bye now")
    for cut in range(1, len(tokens)):
        dispatcher.script = [
            _news(tokens[:cut]),
            _news(tokens[cut:], begin=cut),
            FinishReason.LENGTH,
        ]
        answer = await service.generate(asked(logprobs=2, stop=["bye nobody"]))
        assert answer.text == "a\N{GRINNING FACE}bye now"
        told = answer.choices[0].logprobs
        assert [entry.token_id for entry in told] == tokens == list(answer.token_ids)
        assert [entry.logprob for entry in told] == [-0.5 * n for n in range(len(tokens))]
        assert [entry.rank for entry in told] == list(range(1, len(tokens) + 1))
        assert b"".join(entry.bytes for entry in told).decode() == answer.text
        assert [entry.text_offset for entry in told] == [0, 1, 1, 1, 1, *range(2, 9)]
        assert [top.token_id for top in told[3].top] == [65, 66]
        assert [top.logprob for top in told[3].top] == [-0.25, -0.5]


async def test_tokens_past_a_stop_text_are_not_told(
    service: GenerationService, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = [_news(spell("one two three")), "hang"]
    answer = await service.generate(asked(logprobs=0, stop=["two"]))
    (choice,) = answer.choices
    assert answer.text == "one "
    assert b"".join(entry.bytes for entry in choice.logprobs) == b"one two"
    assert choice.stop_text == "two"


async def test_a_stop_text_may_stay(
    service: GenerationService, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = [spell("one t"), spell("wo three"), "hang"]
    answer = await service.generate(asked(stop=["two", "wo"], include_stop=True))
    assert answer.text == "one two"
    assert answer.choices[0].stop_text == "two"


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abc")])
async def test_a_stop_token_of_the_clients_leaves_no_text_unless_it_is_to_stay(
    service: GenerationService, dispatcher: Any, spell: Spell, include: bool, text: str
) -> None:
    *tokens, stop = spell("abc")
    dispatcher.script = [RequestUpdate("r", (*tokens, stop), FinishReason.STOP)]
    answer = await service.generate(asked(stop_token_ids=[stop], include_stop=include))
    assert answer.text == text
    assert list(answer.token_ids) == [*tokens, stop]
    assert answer.choices[0].stop_token_id == stop
    assert answer.finish_reason == pb.FINISH_REASON_STOP


async def test_the_models_own_end_is_not_named(service: GenerationService, dispatcher: Any) -> None:
    dispatcher.script = [RequestUpdate("r", (66, 2), FinishReason.STOP)]
    (choice,) = (await service.generate(asked())).choices
    assert not choice.HasField("stop_token_id")
    assert not choice.HasField("stop_text")


async def test_the_prompt_is_told_once_with_its_scores(
    service: GenerationService, dispatcher: Any, tokenizer: ModelTokenizer, spell: Spell
) -> None:
    prompt = tokenizer.encode_prompt("hello world")
    scores = tuple(_logprobs(number) for number in range(len(prompt) - 1))
    dispatcher.script = [
        RequestUpdate("r", (), prompt_logprobs=scores[:1]),
        RequestUpdate("r", tuple(spell("x")), prompt_logprobs=scores[1:]),
        spell("y"),
        FinishReason.LENGTH,
    ]
    request = asked("hello world", prompt_logprobs=2, echo=True)
    chunks = [chunk async for chunk in service.stream(request)]
    assert [chunk.HasField("prompt") for chunk in chunks] == [True, False, False]
    told = chunks[0].prompt
    assert tuple(told.token_ids) == prompt
    assert [entry.token_id for entry in told.logprobs] == list(prompt)
    assert not told.logprobs[0].HasField("logprob")
    assert [entry.logprob for entry in told.logprobs[1:]] == [s.logprob for s in scores]
    whole = await service.generate(request)
    assert whole.prompt == told
    assert whole.text == "hello worldxy"


async def test_echo_of_tokens_and_chats_is_their_text(
    service: GenerationService, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = [_news(spell("!")), FinishReason.LENGTH]
    request = asked(echo=True, logprobs=0)
    request.tokens.ids.extend(spell("hey"))
    answer = await service.generate(request)
    assert answer.text == "hey!"
    assert list(answer.prompt.token_ids) == spell("hey")
    assert not answer.prompt.logprobs
    assert [entry.text_offset for entry in answer.choices[0].logprobs] == [3]


async def test_every_answer_begins_with_what_is_echoed(
    service: GenerationService, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.scripts = {n: [spell(f"{n}"), FinishReason.LENGTH] for n in range(3)}
    answer = await service.generate(asked("hi ", echo=True, n=3))
    assert [choice.text for choice in answer.choices] == ["hi 0", "hi 1", "hi 2"]


async def test_nothing_is_told_unasked(
    service: GenerationService, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = [spell("x"), FinishReason.LENGTH]
    answer = await service.generate(asked())
    assert not answer.HasField("prompt")
    assert not answer.choices[0].logprobs
