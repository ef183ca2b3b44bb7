"""Anything may happen to a scheduler in any order; books and outputs are right all the time."""

import os
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from blockyard.scheduler.block_keys import PrefixExtras, block_keys
from blockyard.scheduler.config import PreemptionPolicy
from blockyard.scheduler.guessing import Guesser, OpenGuesser
from blockyard.scheduler.request import RequestRefused
from blockyard.workers.witness_guesser import WitnessGuesser

CONTEXT = 40
VOCAB = 97


def _guesser(mistakes: int) -> Guesser:
    return OpenGuesser() if mistakes % 2 else WitnessGuesser(VOCAB, mistakes)


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, steps, aborts, acknowledges late and drains, in any order."""

    def __init__(self, make_rig: Callable[..., Any], prompt_of: Callable[..., list[int]]) -> None:
        super().__init__()
        self.make_rig = make_rig
        self.prompt_of = prompt_of
        self.rig: Any = None
        self.draining = False

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.sampled_from((1, 2, 4)),
        max_running=st.integers(1, 6),
        spare_tokens=st.integers(1, 12),
        num_host_blocks=st.sampled_from((0, 1, 3, 20)),
        policy=st.sampled_from(PreemptionPolicy),
        link_rate=st.sampled_from((0.0, 0.1, 1.0, 10.0)),
        depth=st.sampled_from((1, 2)),
        mistakes=st.none() | st.integers(0, 9),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_running: int,
        spare_tokens: int,
        num_host_blocks: int,
        policy: PreemptionPolicy,
        link_rate: float,
        depth: int,
        mistakes: int | None,
    ) -> None:
        """With `mistakes` steps check guesses, when one is in flight at a time.

        With an odd number workers make them.
        """
        guesses = mistakes is not None and depth == 1
        self.rig = self.make_rig(
            num_blocks,
            block_size,
            max_running,
            max_step_tokens=max_running + spare_tokens,
            context=CONTEXT,
            ranks=2,
            num_host_blocks=num_host_blocks,
            policy=policy,
            prefill_rate=4.0,
            link_rate=link_rate,
            depth=depth,
            guesser=_guesser(mistakes or 0) if guesses else None,
        )

    @rule(
        eighths=st.integers(1, 9),
        max_tokens=st.none() | st.integers(1, 16),
        priority=st.integers(0, 2),
        stops=st.booleans(),
        min_tokens=st.integers(0, 3),
        family=st.integers(0, 2),
        own=st.integers(0, 3),
        salt=st.sampled_from(("", "", "", "a")),
        cached=st.sampled_from((True, True, True, False)),
        hint=st.integers(0, 3),
        num_choices=st.sampled_from((1, 1, 1, 2, 3)),
    )
    def submit(
        self,
        eighths: int,
        max_tokens: int | None,
        priority: int,
        stops: bool,
        min_tokens: int,
        family: int,
        own: int,
        salt: str,
        cached: bool,
        hint: int,
        num_choices: int,
    ) -> None:
        """Prompts go from an eighth of the pool to a little more than all of it.

        They begin like others of their family and end in a few tokens of their own. Keys given
        with them may be right, wrong or absent.
        """
        index = self.rig.arrivals
        num_choices = min(num_choices, self.rig.max_running)
        slots = self.rig.num_blocks * self.rig.block_size
        length = max(1, slots * eighths // 8)
        total = length + (max_tokens or 1)
        fits = total <= CONTEXT and total - 1 <= slots
        least = min(min_tokens, max_tokens) if max_tokens else 0
        stop = tuple(range(0, VOCAB, 7)) if stops else ()
        own = min(own, length)
        prompt = self.prompt_of(80, family)[: length - own] + self.prompt_of(own, index)
        extras = PrefixExtras(salt=salt)
        keys: tuple[bytes, ...] = ()
        if hint < 3:
            hinted = prompt if hint < 2 else self.prompt_of(80, 0)[:length]
            keys = block_keys(hinted, self.rig.block_size, extras if hint else PrefixExtras())
        try:
            self.rig.submit(
                f"request {index}",
                prompt,
                max_tokens,
                priority,
                stop,
                least,
                extras=extras,
                use_prefix_cache=cached,
                block_keys=keys,
                num_choices=num_choices,
            )
        except RequestRefused:
            assert self.draining or not fits
        else:
            assert fits and not self.draining

    @precondition(lambda self: self.rig.scheduler.may_plan)
    @rule()
    def plan(self) -> None:
        self.rig.plan()

    @precondition(lambda self: self.rig.in_flight)
    @rule()
    def commit(self) -> None:
        self.rig.commit()

    @precondition(lambda self: self.rig.unacknowledged)
    @rule(data=st.data())
    def acknowledge_late(self, data: st.DataObject) -> None:
        self.rig.acknowledge(data.draw(st.sampled_from(self.rig.unacknowledged)))

    @rule(steps=st.integers(1, 12))
    def step_on(self, steps: int) -> None:
        for _ in range(steps):
            if not self.rig.step():
                break

    @precondition(lambda self: self.rig.specs)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.rig.specs)))
        self.rig.abort(self.rig.specs[name].request_id)

    @precondition(lambda self: self.rig.live())
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.rig.live())))
        token = data.draw(st.none() | st.integers(0, VOCAB - 1))
        self.rig.fork(name, data.draw(st.integers(0, 9)), token)

    @precondition(lambda self: self.rig.specs)
    @rule(data=st.data())
    def abort_choice(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.rig.specs)))
        choice = data.draw(st.sampled_from((self.rig.books.choices[name], 1, 2, 5)))
        self.rig.abort_choice(self.rig.specs[name].request_id, choice)

    @precondition(lambda self: self.rig.specs)
    @rule()
    def reset_prefix_cache(self) -> None:
        self.rig.reset_prefix_cache()

    @rule()
    def drain(self) -> None:
        # Rarely useful early in a run: afterwards nothing new comes in.
        if len(self.rig.specs) > 6:
            self.draining = True
            self.rig.scheduler.start_drain()

    @invariant()
    def books_are_right(self) -> None:
        if self.rig is not None:
            self.rig.check()

    def teardown(self) -> None:
        if self.rig is not None:
            self.rig.finish()


@pytest.fixture
def run_machine(
    make_rig: Callable[..., Any], prompt_of: Callable[..., list[int]]
) -> Callable[[int], None]:
    """Runs so many random sequences."""

    class Machine(SchedulerMachine):
        def __init__(self) -> None:
            super().__init__(make_rig, prompt_of)

    def run(sequences: int) -> None:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=sequences,
                stateful_step_count=40,
                deadline=None,
                derandomize=False,
                print_blob=True,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )

    return run


def test_anything_in_any_order(run_machine: Callable[[int], None]) -> None:
    run_machine(400)


@pytest.mark.slow
def test_anything_in_any_order_two_thousand_times(run_machine: Callable[[int], None]) -> None:
    run_machine(2000)


@pytest.mark.soak
@pytest.mark.skipif(
    "BLOCKYARD_SOAK_SECONDS" not in os.environ, reason="make soak says how long to run"
)
@pytest.mark.timeout(0)
def test_anything_in_any_order_for_as_long_as_asked(run_machine: Callable[[int], None]) -> None:
    ends_at = monotonic() + float(os.environ["BLOCKYARD_SOAK_SECONDS"])
    while monotonic() < ends_at:
        run_machine(1000)
