from dataclasses import replace
from typing import Any

import pytest

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.door import resolve_max_tokens
from blockyard.scheduler.request import RefusalCode, RequestRefused, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler

LARGE = 1000
"""Blocks that hold more than the context."""


def config(max_waiting: int = 8) -> SchedulerConfig:
    return SchedulerConfig(
        max_context_tokens=100,
        block_size=4,
        max_running=4,
        max_step_tokens=16,
        max_waiting=max_waiting,
    )


def spec(
    prompt: int, max_tokens: int | None = None, min_tokens: int = 0, name: str = "r"
) -> RequestSpec:
    return RequestSpec(
        name, (1,) * prompt, SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens)
    )


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "num_blocks", "resolved"),
    [
        (10, 5, LARGE, 5),
        (10, None, LARGE, 90),  # to the end of the context
        (99, None, LARGE, 1),
        (99, 1, LARGE, 1),
        (10, 90, LARGE, 90),
        (10, None, 5, 11),  # 20 slots: 10 for the prompt, 10 for all but the last token
        (10, 11, 5, 11),
        (20, None, 5, 1),
        (20, 1, 5, 1),
    ],
)
def test_what_fits_is_taken(
    prompt: int, max_tokens: int | None, num_blocks: int, resolved: int
) -> None:
    assert resolve_max_tokens(spec(prompt, max_tokens), config(), num_blocks) == resolved


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "num_blocks", "field", "numbers"),
    [
        (0, None, LARGE, "prompt", []),
        (100, None, LARGE, "prompt", ["100 tokens", "context holds 100", "to 99"]),
        (101, 1, LARGE, "prompt", ["101 tokens", "context holds 100"]),
        (10, 91, LARGE, "max_tokens", ["10 tokens", "91", "101", "holds 100", "ask for 90"]),
        (10, 12, 5, "max_tokens", ["6 blocks of 4", "pool has 5", "ask for 11"]),
        (21, None, 5, "prompt", ["21 tokens", "6 blocks of 4", "has 5", "to 20"]),
    ],
)
def test_what_can_never_fit_is_refused_with_the_numbers(
    prompt: int, max_tokens: int | None, num_blocks: int, field: str, numbers: list[str]
) -> None:
    with pytest.raises(RequestRefused) as caught:
        resolve_max_tokens(spec(prompt, max_tokens), config(), num_blocks)
    assert caught.value.code is RefusalCode.INVALID
    assert caught.value.field == field
    for number in numbers:
        assert number in caught.value.message


def test_min_tokens_above_what_fits_is_refused() -> None:
    assert resolve_max_tokens(spec(90, None, 10), config(), LARGE) == 10
    with pytest.raises(RequestRefused, match=r"min_tokens is 11.*only 10 fit") as caught:
        resolve_max_tokens(spec(90, None, 11), config(), LARGE)
    assert caught.value.field == "min_tokens"


def test_o28_a_live_id_is_refused_and_free_again_afterwards() -> None:
    scheduler = Scheduler(config(), 20)
    scheduler.submit(spec(5), 0.0)
    with pytest.raises(RequestRefused, match="'r' is being served") as caught:
        scheduler.submit(spec(5), 0.0)
    assert (caught.value.code, caught.value.field) == (RefusalCode.INVALID, "request_id")
    assert scheduler.num_requests == 1
    assert scheduler.abort("r")
    scheduler.submit(spec(5), 0.0)
    scheduler.check()


def test_too_many_waiting_are_refused_until_some_are_admitted() -> None:
    scheduler = Scheduler(config(max_waiting=2), 20)
    scheduler.submit(spec(5, name="a"), 0.0)
    scheduler.submit(spec(5, name="b"), 0.0)
    with pytest.raises(RequestRefused, match="2 requests wait already, at most 2") as caught:
        scheduler.submit(spec(5, name="c"), 0.0)
    assert (caught.value.code, caught.value.field) == (RefusalCode.EXHAUSTED, "")
    assert scheduler.plan(0.0) is not None
    scheduler.submit(spec(5, name="c"), 0.0)


def test_draining_refuses_newcomers_and_keeps_those_taken() -> None:
    scheduler = Scheduler(config(), 20)
    scheduler.submit(spec(5, name="a"), 0.0)
    scheduler.start_drain()
    with pytest.raises(RequestRefused) as caught:
        scheduler.submit(spec(5, name="b"), 0.0)
    assert caught.value.code is RefusalCode.UNAVAILABLE
    # A mistake stays a mistake: another server would refuse it too.
    with pytest.raises(RequestRefused) as caught:
        scheduler.submit(spec(0, name="b"), 0.0)
    assert caught.value.code is RefusalCode.INVALID
    assert scheduler.plan(0.0) is not None


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"stop_token_ids": (3, 50)}, "stop_token_ids"),
        ({"logit_bias": ((50, 1.0),)}, "logit_bias"),
        ({"allowed_token_ids": (1, 51)}, "allowed_token_ids"),
        ({"bad_words": ((1, 2), (3, 50))}, "bad_words"),
        ({}, "prompt"),
    ],
)
def test_o23_token_ids_past_the_vocabulary_are_refused(options: dict[str, Any], field: str) -> None:
    known = replace(config(), vocab_size=50)
    prompt = (49, 50) if field == "prompt" else (49, 0)
    asked = RequestSpec("r", prompt, SamplingParams(max_tokens=5, **options))
    with pytest.raises(RequestRefused, match="from 0 to 49") as refused:
        Scheduler(known, 20).submit(asked, 0.0)
    assert (refused.value.code, refused.value.field) == (RefusalCode.INVALID, field)
    assert Scheduler(replace(known, vocab_size=52), 20).submit(asked, 0.0) == 5


@pytest.mark.parametrize("token", [-1, 2**32, 2**70])
def test_o23_what_is_no_token_id_at_all_is_refused_likewise(token: int) -> None:
    asked = RequestSpec("r", (1, token), SamplingParams(max_tokens=5))
    with pytest.raises(RequestRefused, match="from 0 to") as refused:
        Scheduler(config(), 20).submit(asked, 0.0)
    assert (refused.value.code, refused.value.field) == (RefusalCode.INVALID, "prompt")
