"""What every simulated group does alike: it takes requests, spends time on steps, keeps records.

How memory is given out, and who takes part in a step, is left to its kinds: blocks under the real
scheduler, or one contiguous piece for each request. Units: simulated seconds, tokens, slots.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.simulated.arrivals import Arrival
from blockyard.scheduler.simulated.memory_timeline import SlotState
from blockyard.scheduler.simulated.records import ReplayRecords, RequestTimes
from blockyard.scheduler.simulated.step_cost import StepCost
from blockyard.scheduler.simulated.stretch import Stretch

__all__ = ["MOST_STEPS_AHEAD", "SimulatedGroup"]

MOST_STEPS_AHEAD = 256
"""Steady steps that are worked out in a row: what comes in between would make more be in vain."""

_DRAWN_AT_ONCE = 16
"""Steps that are drawn over time as one level."""


class SimulatedGroup(ABC):
    """One group with a clock of its own.

    The owner of the clock calls `begin`, then `finish` at the time it was told, and so on. What
    begins is one step, or with `ahead` all steady steps in a row: of these the books are made only
    when somebody wants to know or to change something, as they would be step by step. `submit` may
    come between any two calls, after `cut`. While `begin` answers None the group is idle.
    """

    def __init__(
        self,
        group_id: str,
        records: ReplayRecords,
        cost: StepCost,
        num_slots: int,
        block_size: int,
    ) -> None:
        self.group_id = group_id
        self.block_size = block_size
        self.records = records
        self._cost = cost
        self._lives: dict[str, RequestTimes] = {}
        self._ledger: GroupLedger | None = None
        self._stretch: Stretch | None = None
        self._candidate: Candidate | None = None
        self._candidate_until = math.inf
        self._since = 0.0
        self._resting = False
        self._state = SlotState(0, 0, 0, 0, 0, num_slots, 0)
        self._step_began = 0.0
        # Everybody who ran at this moment got a token then.
        self._all_answered = 0.0

    @property
    def num_requests(self) -> int:
        """Requests running and waiting."""
        return len(self._lives)

    @property
    @abstractmethod
    def num_queued(self) -> int:
        """Requests that wait for a place."""

    @abstractmethod
    def _take(self, name: str, arrival: Arrival, now: float) -> bool:
        """Queue a request up; False when it is refused for good."""

    @abstractmethod
    def _start(self, now: float) -> float | None:
        """Begin a step and return how long it takes; None when there is nothing to compute."""

    @abstractmethod
    def _finish(self, now: float) -> tuple[Iterable[str], Iterable[str]]:
        """End the step: who got a token in it, and who of them ended with it."""

    @abstractmethod
    def _read_ledger(self) -> GroupLedger:
        """The books at this moment."""

    @abstractmethod
    def _read_state(self) -> SlotState:
        """Where the slots are at this moment."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop what is kept of requests that have ended."""

    @abstractmethod
    def _steady_steps(self) -> list[int]:
        """Blocks that the coming steady steps take, added up; entry 0 is 0, before them all.

        In these steps all who run answer a token each, and memory changes by nothing else.
        """

    @abstractmethod
    def _context(self) -> tuple[int, int]:
        """How many run, and how many tokens the next steady step reads for all of them."""

    @abstractmethod
    def _run_steps(self, seconds: Sequence[float]) -> None:
        """Do one steady step for each of these lengths; at most as many as are steady."""

    @abstractmethod
    def _during(
        self, before: SlotState, num_rows: int, filled: float, taken: float, empty: float
    ) -> SlotState:
        """The mean state while steady steps were in flight, from the state before them.

        Since then so many slots were filled on average, and so many taken in blocks, of which
        `empty` were in blocks that held nothing.
        """

    @abstractmethod
    def _ledger_ahead(self, ledger: GroupLedger, done: int, blocks_taken: int) -> GroupLedger:
        """The books while the steady step after `done` ones is in flight, from those before all."""

    def known_blocks(self, arrival: Arrival) -> int:
        """Leading blocks of a prompt that could be found here, as far as steps have been done."""
        return 0

    def rest(self, now: float) -> None:
        """The group is not there until it is woken: its memory does not count. For idle ones."""
        self.account(now)
        self._resting = True

    def wake(self, now: float) -> None:
        """The group is there (again), and remembers nothing."""
        self._resting, self._since = False, now
        self._forget()
        self._note_change()
        self._set_state(self._read_state())

    def submit(self, arrival: Arrival, now: float, arrived: float | None = None) -> None:
        """Take a request, or count it as refused; it may have arrived earlier, elsewhere."""
        name = str(arrival.number)
        self._lives[name] = RequestTimes(now if arrived is None else arrived, arrival.output_tokens)
        self._note_change()
        if not self._take(name, arrival, now):
            del self._lives[name]
            self.records.refused += 1

    def candidate(self, now: float) -> Candidate:
        """The group as placement sees it at a moment."""
        if now >= self._candidate_until or self._candidate is None:
            self._candidate_until = math.inf
            ledger = self.ledger()
            if self._stretch is not None:
                done = self._stretch.done_at(now)
                self._candidate_until = self._stretch.ends[done]
                ledger = self._ledger_ahead(ledger, done, self._stretch.blocks_taken[done + 1])
            self._candidate = Candidate(self.group_id, ledger)
        return self._candidate

    def ledger(self) -> GroupLedger:
        """The books; read anew only after something has changed. Not of steps ahead."""
        if self._ledger is None:
            self._ledger = self._read_ledger()
        return self._ledger

    def begin(self, now: float, *, ahead: bool) -> float | None:
        """Begin what comes next and return when it ends; None when there is nothing to compute.

        Args:
            now: when.
            ahead: take steady steps together.
        """
        taken = self._steady_steps() if ahead else [0]
        if len(taken) > 1:
            rows, context = self._context()
            seconds = self._cost.decode_run(rows, context, len(taken) - 1)
            self._stretch = Stretch(now, seconds, taken)
            self._candidate = None
            return self._stretch.ends[-1]
        return self._begin_step(now)

    def finish(self, now: float) -> None:
        """End what was begun."""
        stretch = self._stretch
        if stretch is None:
            self._end_step(now)
        else:
            self._stretch = None
            self._run_ahead(stretch)

    def cut(self, now: float) -> float | None:
        """Let what was begun end with the step that is in flight at a moment.

        Returns:
            When that step ends, if that is news: the end told before is void.
        """
        stretch = self._stretch
        if stretch is None or not stretch.shorten(stretch.done_at(now) + 1):
            return None
        return stretch.ends[-1]

    def forgets_by(self, now: float) -> bool:
        """Whether steps that lie ahead take kept blocks by then, so that less can be found."""
        stretch = self._stretch
        if stretch is None:
            return False
        return stretch.blocks_taken[stretch.done_at(now) + 1] > self.ledger().blocks.free

    def settle(self, now: float) -> float | None:
        """Do what has ended by now of steps that lie ahead, and begin the one in flight by itself.

        Returns:
            When that one ends; the end told before is void.
        """
        stretch = self._stretch
        if stretch is None:
            raise ValueError(f"group {self.group_id} has no steps ahead")
        done = stretch.done_at(now)
        began = stretch.ends[done - 1] if done else stretch.began
        self._stretch = None
        if done:
            stretch.shorten(done)
            self._run_ahead(stretch)
        return self._begin_step(began)

    def account(self, now: float) -> None:
        """Book the memory as it was since the last change up to now."""
        if now > self._since and not self._resting:
            self.records.hold(self._since, now, self._state.times(now - self._since))
            self._since = now

    def _begin_step(self, now: float) -> float | None:
        self.account(now)
        self._note_change()
        seconds = self._start(now)
        self._set_state(self._read_state())
        self._step_began = now
        return None if seconds is None else now + seconds

    def _end_step(self, now: float) -> None:
        self.account(now)
        self._note_change()
        records, lives = self.records, self._lives
        usual = 0
        answered, ended = self._finish(now)
        for name in answered:
            life = lives[name]
            last = life.last_token
            if last is None:
                records.first_token.add(now - life.arrived)
            elif (last := max(last, self._all_answered)) == self._step_began:
                usual += 1
            else:
                records.between_tokens.add(now - last)
            life.last_token = now
        if usual:
            records.between_tokens.add(now - self._step_began, usual)
        for name in ended:
            records.finished += 1
            records.output_tokens += lives.pop(name).output_tokens
        records.simulated_seconds = max(records.simulated_seconds, now)

    def _run_ahead(self, stretch: Stretch) -> None:
        count, ended = len(stretch.ends), stretch.ends[-1]
        self.account(stretch.began)
        rows, _ = self._context()
        before = self._read_state()
        self._run_steps(stretch.seconds)
        self._note_change()
        self._all_answered = ended
        self.records.simulated_seconds = max(self.records.simulated_seconds, ended)
        self.records.between_tokens.add_rising(stretch.seconds, rows)
        for first in range(0, count, _DRAWN_AT_ONCE):
            steps = first, min(count, first + _DRAWN_AT_ONCE)
            means = stretch.means(*steps, rows, self.block_size, before.free)
            begin, end = stretch.span(*steps)
            state = self._during(before, rows, *means)
            self.records.hold(begin, end, state.times(end - begin))
        self._since = ended
        # Nobody came or went; each step holds at least as much as the one before.
        taken = stretch.blocks_taken[count] * self.block_size
        self._note_held(int(before.filled + before.reserved + before.internal) + taken)

    def _note_change(self) -> None:
        self._ledger = self._candidate = None

    def _set_state(self, state: SlotState) -> None:
        if state.running != self._state.running:
            self.records.count_running(int(state.running - self._state.running))
        self._note_held(int(state.filled + state.reserved + state.internal))
        self._state = state

    def _note_held(self, slots: int) -> None:
        if slots > self.records.peak_held_slots:
            self.records.peak_held_slots = slots
