"""Choices that end alone, branch with a forced token, or are called off before they begin."""

from collections.abc import Callable
from typing import Any

import pytest

from blockyard.scheduler.config import PreemptionPolicy
from blockyard.scheduler.request import FinishReason, RequestState

Make = Callable[..., Any]


@pytest.fixture
def three(make_rig: Make, prompt_of: Make) -> Any:
    """Three choices that have begun, and another request."""
    rig = make_rig(num_blocks=60, max_step_tokens=40)
    rig.submit("r", prompt_of(10), max_tokens=12, num_choices=3)
    rig.submit("other", prompt_of(9, 1), max_tokens=12)
    for _ in range(3):
        rig.step()
    return rig


@pytest.mark.parametrize("choice", [0, 1, 2])
@pytest.mark.parametrize("in_flight", [False, True])
def test_one_choice_ends_alone(three: Any, choice: int, in_flight: bool) -> None:
    if in_flight:
        three.plan()
    held = three.scheduler.ledger().blocks.active
    assert three.abort_choice("r", choice)
    assert three.scheduler.ledger().blocks.active < held
    assert not three.abort_choice("r", choice), "it has ended"
    three.finish()
    names = {"r", "r/1", "r/2", "other"}
    assert set(three.ended) == names - {f"r/{choice}" if choice else "r"}


@pytest.mark.parametrize("dropped", [(1,), (2,), (1, 2)])
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_choice_is_called_off_before_it_begins(
    dropped: tuple[int, ...], in_flight: bool, make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=40, max_running=4)
    rig.submit("r", prompt_of(10), max_tokens=5, num_choices=3)
    if in_flight:
        rig.plan()
    for choice in dropped:
        assert rig.abort_choice("r", choice)
        assert not rig.abort_choice("r", choice)
    rig.check()
    # Their places are there for others at once.
    for number in range(1 + len(dropped)):
        rig.submit(f"s{number}", prompt_of(5, number), max_tokens=5)
    rig.finish()
    assert {name for name in rig.ended if name[0] == "r"} == {"r", "r/1", "r/2"} - {
        f"r/{choice}" for choice in dropped
    }


@pytest.mark.parametrize("when", ["waits", "runs", "in flight"])
def test_the_first_choice_given_up_still_computes_for_the_others(
    when: str, make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=40, max_step_tokens=9)
    rig.submit("r", prompt_of(20), max_tokens=5, num_choices=3)
    if when != "waits":
        rig.step()
    if when == "in flight":
        rig.plan()
    assert rig.abort_choice("r", 0)
    assert not rig.abort_choice("r", 0)
    (told,) = rig.scheduler.explain("r")
    assert told.begins == (1, 2)
    rig.finish()
    assert sorted(rig.ended) == ["r/1", "r/2"]
    assert rig.outputs["r"] == [], "nobody is told of what is not wanted"
    assert rig.computed_tokens == 20 + 2 * 4


def test_a_request_ends_with_the_last_choice_called_off(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=40)
    rig.submit("r", prompt_of(10), max_tokens=5, num_choices=3)
    assert all(rig.abort_choice("r", choice) for choice in (0, 2, 1))
    assert not rig.scheduler.has_work and rig.scheduler.explain("r") == ()
    rig.finish()


def test_whom_a_given_up_choice_was_still_to_begin_goes_on_from_what_was_told(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=40)
    rig.submit("r", prompt_of(10), max_tokens=8)
    for _ in range(4):
        rig.step()
    told = list(rig.outputs["r"])
    rig.plan()
    assert rig.fork("r", 3)  # too late for the step in flight
    assert rig.abort_choice("r", 0)
    rig.commit()
    assert rig.outputs["r"] == told == rig.outputs["r/3"]
    rig.finish()
    assert rig.ended == ["r/3"]


def test_numbers_of_choices_are_never_given_again(three: Any) -> None:
    assert three.fork("r", 7)
    assert three.abort_choice("r", 7)
    three.abort_choice("r", 2)
    three.step()
    for used in (0, 1, 2, 7, -1):
        assert not three.scheduler.fork("r", 1, used)
        assert not three.scheduler.fork("r", 1, used, 5)
    assert three.fork("r", 8)
    three.finish()
    assert "r/8" in three.ended and "r/7" not in three.specs


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("steps", range(1, 7))
def test_a_forced_token_takes_the_place_of_the_newest(
    in_flight: bool, cached: bool, steps: int, make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=40)
    rig.submit("r", prompt_of(10), max_tokens=12, use_prefix_cache=cached)
    for _ in range(steps):
        rig.step()
    if in_flight:
        rig.plan()
    before = rig.computed_tokens
    assert rig.fork("r", 1, 55) and rig.fork("r", 2, 56)
    assert rig.outputs["r/1"] == [*rig.outputs["r"][:-1], 55]
    rig.check()
    rig.finish()
    assert len(rig.ended) == 3
    spent = rig.computed_tokens - before
    tails = 3 * (12 - steps) - in_flight
    if in_flight:
        # The block that the step writes to cannot be shared; what was in it is computed again.
        assert tails <= spent <= tails + 2 * 3
    else:
        assert spent == tails, "nothing is computed twice"


def test_beams_follow_the_best_and_leave_clean_books(make_rig: Make, prompt_of: Make) -> None:
    """A search of width 3: fork the wanted tokens, then let go of all the old beams."""
    rig = make_rig(num_blocks=60, max_running=8, max_step_tokens=24)
    rig.submit("r", prompt_of(10), max_tokens=9)
    rig.step()
    beams, number = ["r"], 1
    for depth in range(6):
        wanted = [(beam, (7 * number + 31 * depth) % 97) for beam in beams for number in range(3)]
        grown = []
        for beam, token in wanted[:3] if depth else wanted:
            assert rig.fork(beam, number, token)
            grown.append(f"r/{number}")
            number += 1
        for beam in beams:
            assert rig.abort_choice("r", rig.books.choices[beam])
        beams = grown
        rig.step()
    rig.finish()
    assert set(rig.ended) == set(beams)
    ledger = rig.scheduler.ledger()
    assert ledger.recomputed_tokens == 0


def test_no_branch_where_it_would_end_or_nothing_was_told(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=40, max_running=2, max_step_tokens=8)
    rig.submit("r", prompt_of(10), max_tokens=4, stop=(50,))
    assert not rig.fork("r", 1, 5), "it waits"
    rig.step()
    assert not rig.fork("r", 1, 5), "it has produced nothing"
    rig.step()
    assert not rig.fork("r", 1, 50), "a stop token would end it"
    assert rig.fork("r", 1, 51)
    assert not rig.fork("r", 2, 52), "no place is left"
    rig.finish()


@pytest.mark.parametrize("policy", PreemptionPolicy)
def test_branches_are_preempted_and_come_back(
    policy: PreemptionPolicy, make_rig: Make, prompt_of: Make
) -> None:
    for cached in (False, True):
        rig = make_rig(num_blocks=9, num_host_blocks=6, policy=policy, max_step_tokens=30)
        rig.submit("r", prompt_of(9), max_tokens=20, use_prefix_cache=cached)
        rig.step()
        rig.step()
        for number in range(1, 5):
            assert rig.fork("r", number, 60 + number)
        rig.finish()
        assert rig.scheduler.ledger().preemptions > 0 and len(rig.ended) == 5


def test_every_live_choice_is_explained(three: Any) -> None:
    told = three.scheduler.explain("r")
    assert [one.choice for one in told] == [0, 1, 2]
    assert {one.state for one in told} == {RequestState.RUNNING}
    assert three.fork("r", 4)
    three.abort_choice("r", 1)
    told = three.scheduler.explain("r")
    assert [(one.choice, one.begins) for one in told] == [(0, (4,)), (2, ())]
    assert three.reasons["r/1"] is FinishReason.ABORT
    three.finish()
