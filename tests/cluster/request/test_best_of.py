"""More answers are made than given: the client gets those that the model holds for the best."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.best_of import rank_answers
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason, RequestUpdate
from blockyard.scheduler.sampling import TokenLogprobs

Spell = Callable[[str], list[int]]


@pytest.fixture
def service(dispatcher: Any, tokenizers: dict[str, ModelTokenizer]) -> GenerationService:
    return GenerationService(dispatcher, tokenizers)


@pytest.fixture
def scored(dispatcher: Any, spell: Spell) -> None:
    """Four answers; the mean log probabilities of their tokens are -2, -0.5, -1 and -3."""
    for choice, (text, logprob) in enumerate(
        [("first", -2.0), ("ab", -0.5), ("a longer one", -1.0), ("x", -3.0)]
    ):
        ids = spell(text)
        dispatcher.scripts[choice] = [
            RequestUpdate("any", (token,), logprobs=(TokenLogprobs(logprob, 1),)) for token in ids
        ] + [FinishReason.LENGTH]


def asked(**sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt="hello", sampling=pb.SamplingParameters(**sampling))


def test_a_long_answer_is_not_worth_less_for_its_length() -> None:
    assert rank_answers({0: [-1.0], 1: [-0.9] * 50, 2: [-0.8, -1.2], 3: []}) == [1, 0, 2, 3]


@pytest.mark.usefixtures("scored")
async def test_the_best_are_given_the_best_first(
    service: GenerationService, dispatcher: Any
) -> None:
    answer = await service.generate(asked(n=2, best_of=4))
    ((_, spec),) = dispatcher.submitted
    assert (spec.num_choices, spec.sampling.logprobs) == (4, 0)
    assert [choice.text for choice in answer.choices] == ["ab", "a longer one"]
    assert [choice.choice for choice in answer.choices] == [0, 1]
    assert answer.text == "ab" and not any(choice.logprobs for choice in answer.choices)
    # All that was made is counted.
    assert answer.usage.completion_tokens == 5 + 2 + 12 + 1
    assert answer.usage.prompt_tokens == len(spec.prompt_token_ids)


@pytest.mark.usefixtures("scored")
async def test_a_stream_tells_the_best_alone_once_all_have_ended(
    service: GenerationService, dispatcher: Any
) -> None:
    chunks = [chunk async for chunk in service.stream(asked(best_of=4, logprobs=0))]
    assert {chunk.choice for chunk in chunks} == {0}
    assert "".join(chunk.text for chunk in chunks) == "ab"
    assert [token.logprob for chunk in chunks for token in chunk.logprobs] == [-0.5, -0.5]
    assert chunks[-1].finish_reason == pb.FINISH_REASON_LENGTH
    assert dispatcher.streams[0].aborts == 0


@pytest.mark.usefixtures("scored")
async def test_as_many_as_are_made_are_given_in_their_own_order(
    service: GenerationService, dispatcher: Any
) -> None:
    answer = await service.generate(asked(n=4, best_of=4))
    assert [choice.text for choice in answer.choices] == ["first", "ab", "a longer one", "x"]
    assert dispatcher.submitted[0][1].sampling.logprobs is None


@pytest.mark.parametrize(("n", "best_of"), [(1, 0), (3, 2), (1, 17), (1, -1)])
async def test_what_cannot_be_is_refused(service: GenerationService, n: int, best_of: int) -> None:
    with pytest.raises(ApiError) as caught:
        await service.generate(asked(n=n, best_of=best_of))
    assert (caught.value.code, caught.value.field) == (
        ApiCode.INVALID_ARGUMENT,
        "sampling.best_of",
    )


@pytest.mark.usefixtures("scored")
async def test_leaving_calls_off_all(service: GenerationService, dispatcher: Any) -> None:
    dispatcher.scripts[3] = ["hang"]
    stream = service.stream(asked(best_of=4))
    reading = asyncio.ensure_future(anext(stream))
    while not dispatcher.streams or len(dispatcher.streams[0].playing) > 1:
        await asyncio.sleep(0.001)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert dispatcher.streams[0].aborts == 1
