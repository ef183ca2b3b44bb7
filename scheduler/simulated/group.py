"""What every simulated group does alike: it takes requests, spends time on steps, keeps records.

How memory is given out, and who takes part in a step, is left to its kinds: blocks under the real
scheduler, or one contiguous piece for each request. Units: simulated seconds, tokens, slots.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.simulated.arrivals import Arrival
from blockyard.scheduler.simulated.memory_timeline import SlotState
from blockyard.scheduler.simulated.records import ReplayRecords
from blockyard.scheduler.simulated.step_cost import StepCost

__all__ = ["SimulatedGroup"]


class _Life:
    """What is known of a request in the group: when it came and when its last token did."""

    __slots__ = ("arrived", "last_token", "output_tokens")

    def __init__(self, arrived: float, output_tokens: int) -> None:
        self.arrived = arrived
        self.output_tokens = output_tokens
        self.last_token: float | None = None


class SimulatedGroup(ABC):
    """One group with a clock of its own.

    The owner of the clock calls `begin_step`, then `end_step` at the time it was told, and so on;
    `submit` may come between any two calls. While `begin_step` answers None the group is idle.
    """

    def __init__(
        self, group_id: str, records: ReplayRecords, cost: StepCost, num_slots: int
    ) -> None:
        self.group_id = group_id
        self.records = records
        self._cost = cost
        self._lives: dict[str, _Life] = {}
        self._ledger: GroupLedger | None = None
        self._since = 0.0
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
    def _steady_steps(self) -> int:
        """For so many steps all who run answer a token each and memory changes by nothing else."""

    @abstractmethod
    def _context(self) -> tuple[int, int]:
        """How many run, and how many tokens the next steady step reads for all of them."""

    @abstractmethod
    def _run_steps(self, seconds: Sequence[float]) -> None:
        """Do one steady step for each of these lengths; at most as many as are steady."""

    @abstractmethod
    def _during(self, after: SlotState, mean_filled: float, num_rows: int) -> SlotState:
        """The mean state while steady steps were in flight, by the state after the last."""

    def submit(self, arrival: Arrival, now: float) -> None:
        """Take a request, or count it as refused."""
        name = str(arrival.number)
        self._lives[name] = _Life(now, arrival.output_tokens)
        self._ledger = None
        if not self._take(name, arrival, now):
            del self._lives[name]
            self.records.refused += 1

    def candidate(self) -> Candidate:
        """The group as placement sees it."""
        return Candidate(self.group_id, self.ledger())

    def ledger(self) -> GroupLedger:
        """The books; read anew only after something has changed."""
        if self._ledger is None:
            self._ledger = self._read_ledger()
        return self._ledger

    def begin_step(self, now: float) -> float | None:
        """Begin a step and return when it ends; None when there is nothing to compute."""
        self.account(now)
        self._ledger = None
        seconds = self._start(now)
        self._set_state(self._read_state())
        self._step_began = now
        return None if seconds is None else now + seconds

    def end_step(self, now: float) -> None:
        """End the step in flight."""
        self.account(now)
        self._ledger = None
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

    def run_ahead(self, now: float, until: float) -> float:
        """Do at once all steady steps that end by `until`; returns when the last one ends.

        Leaves books and clock as single steps would. Between steps only.
        """
        while (most := self._steady_steps()) > 0:
            rows, context = self._context()
            lengths: list[float] = []
            began = now
            while len(lengths) < most:
                seconds = self._cost.decode_seconds(rows, context)
                if now + seconds > until:
                    break
                lengths.append(seconds)
                now += seconds
                context += rows
            if lengths:
                self._run_ahead(lengths, began, now, rows)
            if len(lengths) < most:
                break
        return now

    def account(self, now: float) -> None:
        """Book the memory as it was since the last change up to now."""
        if now > self._since:
            self.records.hold(self._since, now, self._state.times(now - self._since))
            self._since = now

    def _run_ahead(self, lengths: Sequence[float], began: float, now: float, rows: int) -> None:
        self.account(began)
        self._ledger = None
        self._run_steps(lengths)
        self._all_answered = now
        self.records.simulated_seconds = max(self.records.simulated_seconds, now)
        # Each step finds `rows` more slots filled than the one before.
        filled = 0.0
        for index, length in enumerate(lengths):
            self.records.between_tokens.add(length, rows)
            filled += length * rows * index
        after = self._read_state()
        seconds = now - began
        mean_filled = after.filled - rows * len(lengths) + filled / seconds
        self.records.hold(began, now, self._during(after, mean_filled, rows).times(seconds))
        self._since = now
        self._set_state(after)

    def _set_state(self, state: SlotState) -> None:
        if state.running != self._state.running:
            self.records.count_running(int(state.running - self._state.running))
        held = int(state.filled + state.reserved + state.internal)
        self.records.peak_held_slots = max(self.records.peak_held_slots, held)
        self._state = state
