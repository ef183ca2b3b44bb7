"""What ends a search early, what its client is told, and what goes on elsewhere."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blockyard.scheduler.plan import RowError
from blockyard.scheduler.request import FinishReason, RequestRefused
from blockyard.scheduler.restart import restarted
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.fake import witness_likeliest

Make = Callable[..., Any]
VOCAB = 97


def test_only_wanted_places_are_told(make_yard: Make, prompt_of: Make) -> None:
    yard = make_yard()
    yard.submit("s", prompt_of(10), 4, max_tokens=6)
    yard.step()
    yard.step()
    assert yard.scheduler.abort("s", 0) and not yard.scheduler.abort("s", 0)
    assert yard.scheduler.abort("s", 3)
    yard.finish()
    assert set(yard.ended["s"]) == {1, 2}


@pytest.mark.parametrize("in_flight", [False, True])
def test_the_last_place_given_up_ends_a_search(
    make_yard: Make, in_flight: bool, prompt_of: Make
) -> None:
    yard = make_yard()
    yard.submit("s", prompt_of(10), 2, max_tokens=6)
    yard.step()
    if in_flight:
        yard.plan()
    assert yard.scheduler.abort("s", 1) and yard.scheduler.abort("s", 0)
    assert not yard.scheduler.has_work and not yard.scheduler.abort("s")
    yard.finish()
    assert "s" not in yard.ended
    yard.submit("s", prompt_of(12), 2, max_tokens=3)
    yard.finish()
    assert len(yard.ended["s"]) == 2


def test_a_beam_that_fails_fails_its_search_alone(make_yard: Make, prompt_of: Make) -> None:
    yard = make_yard()
    yard.submit("s", prompt_of(10), 3, max_tokens=6)
    yard.submit("other", prompt_of(9), max_tokens=8)
    yard.step()
    yard.step()
    assert yard.plan()
    (handle,) = {member.handle for member in yard.scheduler.roster.members("s")[1:2]}
    yard.commit(lambda result: replace(result, errors=(RowError(handle or 0, "no number"),)))
    told = yard.ended.pop("s")
    assert {(u.choice, u.finish_reason, u.error) for u in told.values()} == {
        (choice, FinishReason.ERROR, "no number") for choice in range(3)
    }
    yard.finish()
    assert set(yard.ended) == {"other"}


def test_a_search_begins_anew_from_its_value_and_finds_the_same(
    make_yard: Make, prompt_of: Make
) -> None:
    yard = make_yard()
    yard.submit("s", prompt_of(10), 3, max_tokens=9, stop_token_ids=(5, 6, 7, 8))
    for _ in range(4):
        yard.step()
    yard.scheduler.abort("s", 0)
    snapshot = yard.scheduler.snapshot("s", yard.now)
    assert snapshot is not None and snapshot.numbers == (1, 2) and not snapshot.has_started
    yard.scheduler = restarted(yard.scheduler, yard.now, "")
    yard.renew()
    yard.finish()
    assert set(yard.ended["s"]) == {1, 2}


def test_log_probabilities_of_the_answers_are_told_to_who_wants_them(
    make_yard: Make, prompt_of: Make
) -> None:
    yard = make_yard()
    yard.submit("plain", prompt_of(10), 3, max_tokens=4)
    spec = yard.submit("s", prompt_of(10), 3, max_tokens=4, logprobs=2)
    yard.finish()
    assert all(update.logprobs == () for update in yard.ended["plain"].values())
    for update in yard.ended["s"].values():
        tokens = list(spec.prompt_token_ids)
        for token, told in zip(update.token_ids, update.logprobs, strict=True):
            row = witness_likeliest(tokens, VOCAB, 3)
            place = row.top_ids.index(token)
            assert (told.logprob, told.rank) == (row.top_logprobs[place], place + 1)
            assert (told.top_ids, told.top_logprobs) == (row.top_ids[:2], row.top_logprobs[:2])
            tokens.append(token)


def test_choices_of_a_search_do_not_branch_by_themselves(make_yard: Make, prompt_of: Make) -> None:
    yard = make_yard()
    yard.submit("s", prompt_of(10), 2, max_tokens=6)
    yard.step()
    yard.step()
    assert not yard.scheduler.fork("s", 0, 9) and not yard.scheduler.fork("s", 0, 9, 5)
    yard.finish()


def test_what_no_search_can_be_is_refused_by_name(make_yard: Make, prompt_of: Make) -> None:
    yard = make_yard(max_running=4)
    with pytest.raises(RequestRefused, match="at once") as refused:
        yard.submit("s", prompt_of(10), 5, max_tokens=6)
    assert refused.value.field == "n"
    with pytest.raises(ValueError, match="beam_width: is 60, with 5 stop tokens"):
        SamplingParams(beam_width=60, stop_token_ids=(1, 2, 3, 4, 5))
    with pytest.raises(ValueError, match="length_penalty"):
        SamplingParams(beam_width=2, length_penalty=9.0)
