"""Several answers to one prompt: each whole, none leaked, whatever happens to the others."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason, RefusalCode, RequestRefused, RequestUpdate

Spell = Callable[[str], list[int]]


@pytest.fixture
def service(dispatcher: Any, tokenizers: dict[str, ModelTokenizer]) -> GenerationService:
    return GenerationService(dispatcher, tokenizers)


def asked(n: int, **sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        prompt="hello", request_id="mine", sampling=pb.SamplingParameters(n=n, **sampling)
    )


def aborts(dispatcher: Any) -> tuple[int, list[int]]:
    """Calls for the whole request, and choices called off alone."""
    (stream,) = dispatcher.streams
    return stream.aborts, stream.choice_aborts


async def test_one_request_is_asked_for_all_choices(
    service: GenerationService, dispatcher: Any
) -> None:
    dispatcher.script = [FinishReason.STOP]
    await service.generate(asked(3, seed=7, temperature=0.5))
    ((_, spec),) = dispatcher.submitted
    assert (spec.num_choices, spec.sampling.choice, spec.sampling.seed) == (3, 0, 7)
    assert spec.request_id.startswith("mine.")


async def test_all_answers_come_whole_and_in_order(
    service: GenerationService, dispatcher: Any, spell: Spell
) -> None:
    first, second, third = spell("one"), spell("another"), spell("a 😀")
    dispatcher.scripts = {
        0: [*([token] for token in first), FinishReason.LENGTH],
        1: [second, FinishReason.STOP],
        2: [*([token] for token in third), FinishReason.LENGTH],
    }
    answer = await service.generate(asked(3))
    assert [choice.choice for choice in answer.choices] == [0, 1, 2]
    assert [choice.text for choice in answer.choices] == ["one", "another", "a 😀"]
    assert [list(choice.token_ids) for choice in answer.choices] == [first, second, third]
    assert [choice.finish_reason for choice in answer.choices] == [
        pb.FINISH_REASON_LENGTH,
        pb.FINISH_REASON_STOP,
        pb.FINISH_REASON_LENGTH,
    ]
    assert (answer.text, list(answer.token_ids)) == ("one", first)
    assert answer.finish_reason == pb.FINISH_REASON_LENGTH
    assert answer.timings == answer.choices[0].timings
    prompt = dispatcher.submitted[0][1].prompt_token_ids
    assert answer.usage == pb.Usage(
        prompt_tokens=len(prompt),
        cached_tokens=3,
        completion_tokens=len(first) + len(second) + len(third),
    )
    assert aborts(dispatcher) == (0, [])


async def test_chunks_of_each_answer_joined_are_that_answer(
    service: GenerationService, dispatcher: Any, spell: Spell
) -> None:
    texts = {0: "first", 1: "no", 2: "the third"}
    dispatcher.scripts = {
        choice: [*([token] for token in spell(text)), FinishReason.STOP]
        for choice, text in texts.items()
    }
    chunks = [chunk async for chunk in service.stream(asked(3))]
    for choice, text in texts.items():
        own = [chunk for chunk in chunks if chunk.choice == choice]
        assert "".join(chunk.text for chunk in own) == text
        assert [bool(chunk.finish_reason) for chunk in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].usage.completion_tokens == len(text)
    # Interleaved: nobody waits for another one's end.
    assert {chunk.choice for chunk in chunks[:3]} == {0, 1, 2}


async def test_one_answer_also_comes_as_a_choice(
    service: GenerationService, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = [spell("ab"), FinishReason.STOP]
    answer = await service.generate(asked(1))
    (choice,) = answer.choices
    assert (choice.text, list(choice.token_ids)) == (answer.text, list(answer.token_ids))
    assert [spec.request_id.count(".") for _, spec in dispatcher.submitted] == [1]


async def test_a_stop_text_ends_its_own_answer_only(
    service: GenerationService, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.scripts = {
        0: [spell("ab"), spell("cd"), FinishReason.LENGTH],
        1: [spell("xbSTOP"), "hang"],
    }
    answer = await service.generate(asked(2, stop=["STOP"]))
    assert [choice.text for choice in answer.choices] == ["abcd", "xb"]
    assert aborts(dispatcher) == (0, [1])


async def test_the_last_answer_that_a_stop_text_ends_ends_the_request(
    service: GenerationService, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.scripts = {
        0: [spell("aSTOP"), "hang"],
        1: [spell("b"), spell("c"), spell("STOP"), "hang"],
    }
    answer = await service.generate(asked(2, stop=["STOP"]))
    assert [choice.text for choice in answer.choices] == ["a", "bc"]
    assert aborts(dispatcher) == (1, [0])


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (
            RequestUpdate("any", (), FinishReason.DEADLINE, error="too late"),
            ApiCode.DEADLINE_EXCEEDED,
        ),
        (RequestUpdate("any", (), FinishReason.ERROR, error="no token"), ApiCode.INTERNAL),
        (RequestRefused(RefusalCode.UNAVAILABLE, "engine lost"), ApiCode.UNAVAILABLE),
        (OSError("/secret"), ApiCode.INTERNAL),
    ],
)
async def test_one_failure_ends_all(
    service: GenerationService, dispatcher: Any, spell: Spell, fault: Any, code: ApiCode
) -> None:
    dispatcher.scripts = {
        0: [spell("a"), "hang"],
        1: [spell("b"), fault],
        2: [spell("c"), FinishReason.STOP],
    }
    with pytest.raises(ApiError) as caught:
        await service.generate(asked(3))
    assert caught.value.code is code
    assert aborts(dispatcher) == (1, [])


@pytest.mark.parametrize("chunks_read", [1, 2, 3])
async def test_leaving_calls_off_all_that_has_not_ended(
    service: GenerationService, dispatcher: Any, spell: Spell, chunks_read: int
) -> None:
    dispatcher.script = [spell("a"), spell("b"), "hang"]
    async with aclosing(service.stream(asked(3))) as chunks:
        for _ in range(chunks_read):
            await anext(chunks)
    assert aborts(dispatcher) == (1, [])


@pytest.mark.parametrize("ticks", range(8))
async def test_cancelling_at_any_moment_leaks_nothing(
    service: GenerationService, dispatcher: Any, ticks: int
) -> None:
    dispatcher.script = ["hang"]
    task = asyncio.ensure_future(service.generate(asked(3)))
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not dispatcher.streams or aborts(dispatcher) == (1, [])
