"""Steps that check guesses: the same answers, and exact books, whatever was guessed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.config import SchedulerConfig, Speculation
from blockyard.scheduler.guess_rate import MOST_GUESSES
from blockyard.scheduler.guessing import Guesser, NgramGuesser, OpenGuesser
from blockyard.scheduler.plan import GUESS, RowError, StepPlan, StepResult, guesses_told, num_right
from blockyard.scheduler.request import FinishReason, Request, RequestSpec
from blockyard.scheduler.sampling import SamplingParams, TokenLogprobs
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.witness_guesser import WitnessGuesser

VOCAB = 97


def request_of(tokens: Sequence[int]) -> Request:
    spec = RequestSpec("a", (1,), SamplingParams())
    return Request(spec, 0, 1000, BlockTable(16), 0.0, tokens=list(tokens))


class Fixed:
    """Guesses what it is told to."""

    def __init__(self, *guesses: Sequence[int]) -> None:
        self.guesses = list(guesses)
        self.learned: list[tuple[int, int]] = []
        self.most: list[int] = []

    def guess(self, request: Request, most: int) -> Sequence[int]:
        self.most.append(most)
        return self.guesses.pop(0)[:most] if self.guesses else ()

    def learn(self, request: Request, num_guessed: int, num_true: int) -> None:
        self.learned.append((num_guessed, num_true))

    def keep(self, requests: Sequence[Request]) -> None:
        pass


def test_how_far_guesses_are_right() -> None:
    assert num_right((5, 6, 7), (5, 6, 7, 8)) == 3
    assert num_right((5, 6, 7), (5, 9, 7, 8)) == 1
    assert num_right((5,), (4, 5)) == num_right((), (4,)) == 0


@pytest.mark.parametrize("seed", range(8))
def test_answers_are_the_oracles_in_a_pool_too_small(
    make_rig: Callable[..., Any], prompt_of: Callable[..., list[int]], seed: int
) -> None:
    guesser = WitnessGuesser(VOCAB, seed) if seed < 6 else OpenGuesser()
    rig = make_rig(14, 4, 5, 24, num_host_blocks=(0, 5)[seed % 2], ranks=2, guesser=guesser)
    for number in range(8):
        stop = tuple(range(0, VOCAB, 9)) if number % 3 == 0 else ()
        rig.submit(
            f"r{number}", prompt_of(8, number % 2), 20, stop=stop, num_choices=1 + number % 2
        )
        rig.step()
    rig.finish()
    ledger = rig.scheduler.ledger()
    assert ledger.preemptions and 0 < ledger.right_guesses < ledger.guessed_tokens


def test_right_guesses_save_steps(
    make_rig: Callable[..., Any], prompt_of: Callable[..., list[int]]
) -> None:
    def steps(guesser: Guesser | None) -> int:
        rig = make_rig(32, 16, guesser=guesser)
        rig.submit("a", prompt_of(5), 60)
        rig.finish()
        number: int = rig.scheduler.ledger().step
        return number

    alone = steps(None)
    assert steps(WitnessGuesser(VOCAB)) < 0.6 * alone
    assert steps(OpenGuesser()) < 0.7 * alone, "it begins with two and learns"


class Driven:
    """One request of prompt (1, 2, 3) under a scheduler, answered by hand."""

    def __init__(self, guesser: Guesser, block_size: int = 8, **sampling: Any) -> None:
        limits = SchedulerConfig(64, block_size=block_size, max_running=2, max_step_tokens=10)
        self.scheduler = Scheduler(limits, 8, guesser=guesser)
        params = SamplingParams(**{"max_tokens": 20, **sampling})
        self.scheduler.submit(RequestSpec("a", (1, 2, 3), params), 0.0)

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan(0.0)
        assert plan is not None
        plan.check()
        self.scheduler.check()
        return plan

    def answer(self, plan: StepPlan, *tokens: int, **fields: Any) -> list[Any]:
        updates = self.scheduler.commit(StepResult(plan.step, tokens, **fields), 0.0)
        self.scheduler.acknowledge(plan.step)
        self.scheduler.check()
        return updates


def test_a_row_checks_guesses_and_the_next_goes_on_behind_right_ones() -> None:
    guesser = Fixed((11, 12, 13))
    driven = Driven(guesser)
    driven.answer(driven.plan(), 10)
    plan = driven.plan()
    assert (plan.token_ids, plan.counts, plan.guesses) == ((10, 11, 12, 13), (4,), (3,))
    assert plan.num_samples == 4
    assert driven.scheduler.ledger().slots.promised == 4
    (update,) = driven.answer(plan, 11, 12, 99, 98)
    assert update.token_ids == (11, 12, 99)
    assert guesser.learned == [(3, 2)]
    slots = driven.scheduler.ledger().slots
    assert (slots.filled, slots.promised) == (6, 0)
    following = driven.plan()
    assert (following.starts, following.token_ids, following.guesses) == ((6,), (99,), ())


def test_guesses_left_to_workers_are_checked_as_they_were_made() -> None:
    driven = Driven(OpenGuesser())
    driven.answer(driven.plan(), 10)
    plan = driven.plan()
    assert (plan.token_ids, plan.counts, plan.guesses) == ((10, GUESS, GUESS), (3,), (2,))
    (update,) = driven.answer(plan, 11, 12, 13, guesses=(11, 99))
    assert update.token_ids == (11, 12)
    following = driven.plan()
    assert (following.starts, following.token_ids[0]) == ((5,), 12)
    ledger = driven.scheduler.ledger()
    assert (ledger.guessed_tokens, ledger.right_guesses) == (2, 1)


@pytest.mark.parametrize("guesses", [(), (11,), (11, 12, 13), (11, GUESS)])
def test_workers_make_as_many_guesses_as_were_left_to_them(guesses: tuple[int, ...]) -> None:
    driven = Driven(OpenGuesser())
    driven.answer(driven.plan(), 10)
    plan = driven.plan()
    result = StepResult(plan.step, (11, 12, 13), guesses=guesses)
    with pytest.raises(
        ValueError, match=f"leaves 2 guesses to workers, its result has {len(guesses)}"
    ):
        driven.scheduler.commit(result, 0.0)


def test_nothing_but_a_guess_is_left_to_workers() -> None:
    driven = Driven(Fixed((11, 12)))
    driven.answer(driven.plan(), 10)
    plan = driven.plan()
    assert guesses_told(plan, StepResult(plan.step, ())) is plan
    with pytest.raises(AssertionError, match="is no guess"):
        replace(plan, token_ids=(GUESS, 11, 12)).check()
    with pytest.raises(AssertionError, match="is no guess"):
        replace(plan, token_ids=(10, 11, GUESS), guesses=()).check()


def test_guesses_take_what_there_is_and_no_more() -> None:
    """Slots of blocks held anyhow, tokens that the step has left, tokens that may be produced."""
    cases: list[tuple[dict[str, int], int | None]] = [
        ({}, 4),
        ({"max_tokens": 4}, 2),
        ({"max_tokens": 2}, None),
    ]
    for options, most in cases:
        guesser = Fixed()
        driven = Driven(guesser, **options)
        driven.answer(driven.plan(), 10)
        driven.plan()
        assert guesser.most == ([most] if most else []), "of 8 slots; never the last token"
    wide = Fixed()
    driven = Driven(wide, block_size=32)
    driven.answer(driven.plan(), 10)
    driven.scheduler.submit(RequestSpec("b", tuple(range(7)), SamplingParams(max_tokens=9)), 0.0)
    driven.plan()
    assert wide.most == [2], "a step of 10 tokens: one row, and a prompt of 7"


def test_an_answer_ends_at_a_stop_token_among_right_guesses() -> None:
    driven = Driven(Fixed((11, 50, 12)), stop_token_ids=(50,))
    driven.answer(driven.plan(), 10)
    (update,) = driven.answer(driven.plan(), 11, 50, 12, 13)
    assert (update.token_ids, update.finish_reason) == ((11, 50), FinishReason.STOP)
    assert driven.scheduler.ledger().blocks.active == 0
    too_early = Driven(Fixed((11, 50, 12)), stop_token_ids=(50,), min_tokens=4)
    too_early.answer(too_early.plan(), 10)
    (update,) = too_early.answer(too_early.plan(), 11, 50, 12, 13)
    assert (update.token_ids, update.finish_reason) == ((11, 50, 12, 13), None)


def test_each_token_has_its_own_log_probability() -> None:
    driven = Driven(Fixed((11, 12)), logprobs=0)
    scores = [TokenLogprobs(-float(n), n) for n in range(1, 5)]
    driven.answer(driven.plan(), 10, logprobs=(scores[0],))
    (update,) = driven.answer(driven.plan(), 11, 30, 40, logprobs=tuple(scores[1:]))
    assert update.token_ids == (11, 30)
    assert update.logprobs == (scores[1], scores[2])


def test_a_row_that_fails_tells_what_came_before() -> None:
    driven = Driven(Fixed((11, 12)))
    driven.answer(driven.plan(), 10)
    plan = driven.plan()
    error = RowError(plan.handles[0], "nothing left")
    (update,) = driven.answer(plan, 11, -1, 40, errors=(error,))
    assert update.token_ids == (11,)
    assert (update.finish_reason, update.error) == (FinishReason.ERROR, "nothing left")


def test_an_abort_while_guesses_are_checked_leaves_nothing() -> None:
    driven = Driven(Fixed((11, 12)))
    driven.answer(driven.plan(), 10)
    plan = driven.plan()
    driven.scheduler.abort("a")
    assert driven.answer(plan, 11, 12, 13) == []
    counts = driven.scheduler.ledger().blocks
    assert counts.free + counts.cached == counts.total


@pytest.mark.parametrize(
    "change",
    [{"guesses": (4,)}, {"guesses": (2,), "samples": (False,)}, {"guesses": (1, 1)}],
)
def test_a_plan_with_guesses_must_agree_with_itself(change: dict[str, Any]) -> None:
    driven = Driven(Fixed((11, 12, 13)))
    driven.answer(driven.plan(), 10)
    with pytest.raises((AssertionError, ValueError)):
        replace(driven.plan(), **change).check()


def test_what_followed_before_is_guessed_again() -> None:
    guesser = NgramGuesser()
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4]
    assert list(guesser.guess(request_of(tokens), 2)) == [5, 6]
    assert guesser.guess(request_of([1, 2, 3, 4]), 8) == ()
    period = request_of([7, 8, 9] * 4)
    assert list(guesser.guess(period, 8)) == [7, 8], "what it is worth at first"
    for _ in range(40):
        guesser.learn(period, 2, 2)
    assert list(guesser.guess(period, 8)) == [7, 8, 9, 7, 8, 9, 7, 8]
    period.tokens += [7, 8, 1]
    assert guesser.guess(period, 8) == ()
    period.tokens += [7, 8]
    assert list(guesser.guess(period, 1)) == [1], "the newest place counts"


def test_how_many_are_guessed_follows_the_share_that_came_true() -> None:
    guesser = NgramGuesser()
    request = request_of([7, 8, 9] * 4)
    lengths = []
    for right in (True,) * 30 + (False,) * 60:
        guesses = guesser.guess(request, 20)
        lengths.append(len(guesses))
        guesser.learn(request, len(guesses), len(guesses) if right else 0)
    assert lengths[0] == 2 and lengths[29] == MOST_GUESSES
    assert lengths[:30] == sorted(lengths[:30])
    assert sum(lengths[-32:]) == 2, "one is tried now and then"


def test_a_long_prompt_is_read_over_several_steps_and_nobody_is_mistaken_for_another() -> None:
    guesser = NgramGuesser()
    request = request_of([*range(3000), 2500, 2501])
    assert guesser.guess(request, 1) == ()
    guesser.guess(request, 1)
    assert list(guesser.guess(request, 1)) == [2502]
    assert guesser.guess(request_of([5, 6]), 1) == ()
    guesser.keep([])
    assert guesser.guess(request, 1) == (), "who was forgotten is read anew"


def test_of_guesses_left_to_workers_there_are_as_many_as_come_true() -> None:
    guesser = OpenGuesser()
    good, bad = (
        request_of([1, 2]),
        Request(RequestSpec("b", (1,), SamplingParams()), 0, 1000, BlockTable(16), 0.0, tokens=[1]),
    )
    for _ in range(60):
        for request, right in ((good, True), (bad, False)):
            count = len(guesser.guess(request, 20))
            guesser.learn(request, count, count if right else 0)
    assert tuple(guesser.guess(good, 20)) == (GUESS,) * MOST_GUESSES
    assert tuple(guesser.guess(good, 3)) == (GUESS,) * 3
    assert sum(len(guesser.guess(bad, 20)) for _ in range(32)) == 2, "one is tried now and then"
    guesser.keep([])
    assert len(guesser.guess(bad, 20)) == 2, "who was forgotten is believed in again"


@pytest.mark.parametrize("speculate", [Speculation.NGRAM, Speculation.DRAFT])
def test_guesses_and_two_steps_in_flight_do_not_go_together(speculate: Speculation) -> None:
    with pytest.raises(ValueError, match="use a depth of 1"):
        SchedulerConfig(64, pipeline_depth=2, speculate=speculate)
