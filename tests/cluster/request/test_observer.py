"""The line that a request leaves in the log, however it ends."""

import logging
from typing import Any

import pytest

from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.caller import Caller
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.request.observer import ObservedRequest, RequestObserver
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.cluster.tracing import NO_TRACER
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.block_keys import PrefixExtras
from blockyard.scheduler.request import FinishReason, RefusalCode, RequestRefused, RequestSpec
from blockyard.scheduler.sampling import SamplingParams

PROMPT = "hello world"


class Watched:
    """A service, and what it has logged."""

    def __init__(self, dispatcher: Any, tokenizers: Any, caplog: Any, **told: Any) -> None:
        caplog.set_level(logging.INFO, "blockyard")
        self._caplog = caplog
        self.service = GenerationService(dispatcher, tokenizers, observer=RequestObserver(**told))

    def line(self) -> dict[str, Any]:
        """The one line of a request."""
        [record] = [r for r in self._caplog.records if r.message == "request ended"]
        told: dict[str, Any] = record.blockyard_fields
        self._caplog.clear()
        return told


@pytest.fixture
def watched(dispatcher: Any, tokenizers: dict[str, ModelTokenizer], caplog: Any) -> Watched:
    return Watched(dispatcher, tokenizers, caplog)


def asked(**sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        prompt=PROMPT, request_id="mine", sampling=pb.SamplingParameters(**sampling)
    )


async def test_an_answer(watched: Watched, dispatcher: Any, spell: Any) -> None:
    dispatcher.script = [spell("ab"), FinishReason.LENGTH]
    await watched.service.generate(asked(), Caller("corp"))
    line = watched.line()
    [(_, spec)] = dispatcher.submitted
    assert line.pop("seconds") >= line.pop("first_token_seconds")
    assert line == {
        "request_id": spec.request_id,
        "tenant": "corp",
        "model": "small",
        "prompt_tokens": len(spec.prompt_token_ids),
        "cached_tokens": 3,
        "answer_tokens": 2,
        "queue_seconds": 0.1,
        "preemptions": 4,
        "outcome": "length",
    }


async def test_the_adapter_is_named_with_its_version() -> None:
    observed = ObservedRequest(NO_TRACER.begin("request", ""))
    extras = PrefixExtras(adapter="pirate", adapter_version="v2")
    observed.admitted(RequestSpec("id", (1,), SamplingParams(), extras=extras), "small")
    assert observed.told["adapter"] == "pirate@v2"


async def test_several_answers_leave_one_line(
    watched: Watched, dispatcher: Any, spell: Any
) -> None:
    dispatcher.script = [spell("ab"), FinishReason.LENGTH]
    await watched.service.generate(asked(n=3))
    assert watched.line()["answer_tokens"] == 6


async def test_a_refusal_names_the_field_and_not_the_value(watched: Watched) -> None:
    with pytest.raises(ApiError):
        await watched.service.generate(asked(stop=["x" * 5000]))
    line = watched.line()
    assert (line["outcome"], line["field"]) == ("invalid_argument", "sampling.stop[0]")
    assert "xxx" not in str(line)


async def test_a_group_that_is_lost(watched: Watched, dispatcher: Any, spell: Any) -> None:
    dispatcher.script = [spell("a"), RequestRefused(RefusalCode.UNAVAILABLE, "gone")]
    with pytest.raises(ApiError):
        await watched.service.generate(asked())
    assert watched.line()["outcome"] == "unavailable"


async def test_a_failure_of_ours_has_its_incident(watched: Watched, dispatcher: Any) -> None:
    dispatcher.script = [RuntimeError("a bug")]
    with pytest.raises(ApiError) as failure:
        await watched.service.generate(asked())
    line = watched.line()
    assert (line["outcome"], line["incident"]) == ("internal", failure.value.incident)


async def test_a_client_that_leaves(watched: Watched, dispatcher: Any, spell: Any) -> None:
    dispatcher.script = [spell("a"), "hang"]
    stream = watched.service.stream(asked())
    await anext(stream)
    await stream.aclose()
    assert watched.line()["outcome"] == "left"


@pytest.mark.parametrize("wanted", [False, True])
async def test_prompts_are_logged_only_when_that_is_asked_for(
    wanted: bool, dispatcher: Any, tokenizers: Any, caplog: Any, spell: Any
) -> None:
    watched = Watched(dispatcher, tokenizers, caplog, log_prompts=wanted)
    dispatcher.script = [spell("ANSWER"), FinishReason.STOP]
    await watched.service.generate(asked())
    line = watched.line()
    assert line.get("prompt") == (PROMPT if wanted else None)
    assert "ANSWER" not in str(line)
    chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=PROMPT)])
    await watched.service.generate(pb.GenerateRequest(chat=chat))
    assert (PROMPT in str(watched.line())) is wanted
