"""Guesses of next tokens change nothing that a client sees, however it asks and whatever for."""

import asyncio
from typing import Any

import pytest

from blockyard.scheduler.config import Speculation

PROMPT = [40, 41, 42, 43, 44, 45, 46, 47] * 5
KINDS: list[dict[str, Any]] = [
    {"max_tokens": 60, "temperature": 0.0, "logprobs": 2},
    {"max_tokens": 40, "temperature": 0.9, "seed": 3, "n": 3},
    {"max_tokens": 60, "temperature": 0.0, "stop": ["e", "\u00e9", "0"], "include_stop": True},
    {"max_tokens": 40, "temperature": 1.0, "seed": 5, "frequency_penalty": 0.8, "logprobs": 0},
    {"max_tokens": 30, "temperature": 0.0, "logit_bias": {50: 12.0, 51: 11.5, 52: 11.0}},
]


@pytest.mark.parametrize("speculate", [Speculation.NGRAM, Speculation.DRAFT])
async def test_the_same_answers_as_without(make_rig: Any, way: str, speculate: Speculation) -> None:
    """A draft model here is the model itself."""
    plain = await make_rig()
    guessing = await make_rig(blocks=24, speculate=speculate)
    expected = [await plain.ask(way, PROMPT, **kind) for kind in KINDS]
    found = await asyncio.gather(*(guessing.ask(way, PROMPT, **kind) for kind in KINDS))
    for one, other in zip(expected, found, strict=True):
        assert (one.texts, one.reasons, one.spelled) == (other.texts, other.reasons, other.spelled)
        assert one.completion_tokens == other.completion_tokens
        for before, after in zip(one.logprobs, other.logprobs, strict=True):
            assert after == pytest.approx(before, abs=1e-4)
    ledger = guessing.dispatcher.engine.ledger()
    assert ledger.guessed_tokens > 0 and ledger.right_guesses > 0
    if speculate is Speculation.DRAFT:
        assert ledger.right_guesses > 0.95 * ledger.guessed_tokens
        assert ledger.step < 0.5 * plain.dispatcher.engine.ledger().step


@pytest.mark.parametrize("speculate", [Speculation.NGRAM, Speculation.DRAFT])
async def test_forms_are_kept_to(make_rig: Any, speculate: Speculation) -> None:
    """The form makes the answer repeat itself; what a guess may not be is no guess of anybody's."""
    form = {"regex": r"(ab(cd){3}; ){2}x{0,9}(ab(cd){3}; ){3}"}
    asked = {"structured_outputs": form, "max_tokens": 120, "seed": 1}
    plain = await make_rig()
    guessing = await make_rig(speculate=speculate)
    for temperature in (0.0, 1.5):
        one, other = [
            await rig.ask("http-stream", PROMPT, temperature=temperature, **asked)
            for rig in (plain, guessing)
        ]
        assert one.texts == other.texts and one.reasons == other.reasons == ["stop"]
    ledger = guessing.dispatcher.engine.ledger()
    assert ledger.right_guesses > 10
    assert ledger.step < 0.9 * plain.dispatcher.engine.ledger().step
