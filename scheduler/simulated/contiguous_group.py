"""A simulated group with contiguous memory: one piece for each request, first come first served.

What a server without blocks would do with the same requests, memory and device: the same chunked
prefill and continuous batching, but who finds no piece waits, and everybody behind it. Nothing is
shared or cached. Units: simulated seconds, tokens, slots.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from blockyard.scheduler.budget import StepBudget
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.contiguous.allocators import ContiguousAllocator
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.simulated.arrivals import Arrival
from blockyard.scheduler.simulated.group import MOST_STEPS_AHEAD, SimulatedGroup
from blockyard.scheduler.simulated.memory_timeline import SlotState
from blockyard.scheduler.simulated.records import ReplayRecords
from blockyard.scheduler.simulated.step_cost import StepCost

__all__ = ["ContiguousGroup"]


class _Row:
    """One request. It ends with `final + 1` known tokens: the last one is never read back."""

    __slots__ = ("computed", "filled", "final", "known", "lost", "name", "promised", "started")

    def __init__(self, name: str, prompt: int, output: int) -> None:
        self.name = name
        self.known = prompt
        self.computed = self.promised = 0
        self.filled = 0
        self.lost = 0
        self.started = False
        self.final = prompt + output - 1


class ContiguousGroup(SimulatedGroup):
    """One group that gives each request one piece of its memory."""

    def __init__(
        self,
        group_id: str,
        records: ReplayRecords,
        allocator: ContiguousAllocator,
        config: SchedulerConfig,
        cost: StepCost,
    ) -> None:
        super().__init__(group_id, records, cost, allocator.capacity, 1)
        self.allocator = allocator
        self.preemptions = 0
        self.recomputed_tokens = 0
        self._config = config
        self._waiting: deque[_Row] = deque()
        self._running: list[_Row] = []
        self._in_step: list[_Row] = []
        self._pending = 0
        self._queued_tokens = self._admitted_tokens = 0
        self._blocked: _Row | None = None
        self._step = 0

    @property
    def num_queued(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    def _take(self, name: str, arrival: Arrival, now: float) -> bool:
        row = _Row(name, arrival.prompt_tokens, max(1, arrival.output_tokens))
        limit = min(self._config.max_context_tokens, self.allocator.limit)
        if row.known < 1 or row.final + 1 > limit:
            return False
        if self.allocator.reservation(row.final, row.final) > self.allocator.capacity:
            return False
        self._waiting.append(row)
        self._queued_tokens += row.known
        return True

    def _start(self, now: float) -> float | None:
        budget = StepBudget(self._config.max_step_tokens)
        self._in_step = []
        index = 0
        while index < len(self._running):  # a preemption shortens the list from its end
            row = self._running[index]
            index += 1
            if row.known > row.filled and not self._grow(row):
                continue
            count = budget.share(row.known - row.computed, len(self._running) - index)
            if count > 0:
                self._compute(row, count, budget)
        # Those who lost their piece after they had been planned compute nothing.
        self._in_step = [row for row in self._in_step if row.promised]
        self._admit(budget)
        if not self._in_step:
            return None
        self._step += 1
        starts = [row.computed for row in self._in_step]
        return self._cost.compute_seconds(starts, [row.promised for row in self._in_step])

    def _finish(self, now: float) -> tuple[Iterable[str], Iterable[str]]:
        answered: list[str] = []
        ended: list[str] = []
        for row in self._in_step:
            row.computed += row.promised
            self._pending -= row.promised
            row.promised = 0
            if row.computed < row.known:
                continue
            answered.append(row.name)
            row.known += 1
            if row.known > row.final:
                ended.append(row.name)
        if ended:
            gone = set(ended)
            self._running = [row for row in self._running if row.name not in gone]
            for name in ended:
                self.allocator.free(name)
        self._in_step = []
        return answered, ended

    def _admit(self, budget: StepBudget) -> None:
        """Give pieces to those who wait, in order, while places, tokens and holes allow."""
        while self._waiting and budget.left and len(self._running) < self._config.max_running:
            row = self._waiting[0]
            if row is self._blocked and not self.allocator.fits(row.known, row.final):
                return  # its refusal is on the books already
            if not self.allocator.allocate(row.name, row.known, row.final):
                self._blocked = row
                return
            self._waiting.popleft()
            self._queued_tokens -= row.known
            if not row.started:
                row.started = True
                self._admitted_tokens += row.known
            self._blocked = None
            row.filled = row.known
            self._pending += row.known
            self.recomputed_tokens += row.lost
            row.lost = 0
            self._running.append(row)
            self._compute(row, budget.share(row.known, 0), budget)

    def _compute(self, row: _Row, count: int, budget: StepBudget) -> None:
        budget.spend(count)
        row.promised = count
        self._in_step.append(row)

    def _grow(self, row: _Row) -> bool:
        """Make room for a request's newest token; False when it had to give up its own piece.

        Where it cannot move to a larger piece, whoever came last loses its own.
        """
        while not self.allocator.grow(row.name):
            victim = self._running.pop()
            self._preempt(victim)
            if victim is row:
                return False
        row.filled += 1
        self._pending += 1
        return True

    def _preempt(self, row: _Row) -> None:
        self.allocator.free(row.name)
        self.preemptions += 1
        self._pending -= row.filled - row.computed
        row.lost = row.computed
        row.computed = row.promised = row.filled = 0
        self._waiting.appendleft(row)
        self._queued_tokens += row.known

    def _read_ledger(self) -> GroupLedger:
        """The books in the words of a pool whose blocks have one slot."""
        books = self.allocator.books()
        used = books.capacity - books.free
        return GroupLedger(
            blocks=BlockCounts(books.capacity, books.free, 0, used, 0),
            slots=SlotCounts(books.filled, books.reservation, books.internal),
            requests=RequestCounts(len(self._running), len(self._waiting), 0),
            block_size=1,
            step=self._step,
            preemptions=self.preemptions,
            stalled_steps=0,
            logical_tokens=books.filled,
            prompt_tokens=self._admitted_tokens,
            queued_tokens=self._queued_tokens,
        )

    def _read_state(self) -> SlotState:
        books = self.allocator.books()
        # The allocator books a prompt at once; it is filled when it has been computed.
        return SlotState(
            filled=books.filled - self._pending,
            reserved=books.reservation + self._pending,
            internal=books.internal,
            cached=0,
            external=books.free - books.largest_hole,
            free=books.largest_hole,
            running=len(self._running),
        )

    def _forget(self) -> None:
        pass  # nothing is kept

    def _steady_steps(self) -> list[int]:
        if self._waiting or not self._running:
            return [0]
        steps = MOST_STEPS_AHEAD
        for row in reversed(self._running):
            if row.computed + 1 != row.known or row.filled > row.computed:
                return [0]
            room = self.allocator.reservation(row.filled, row.final) - row.filled
            steps = min(steps, room, row.final - row.known)
        # Pieces neither grow nor move.
        return [0] * (max(0, steps) + 1)

    def _context(self) -> tuple[int, int]:
        rows = len(self._running)
        return rows, self.allocator.books().filled + rows

    def _run_steps(self, seconds: Sequence[float]) -> None:
        count = len(seconds)
        self._step += count
        for row in self._running:
            row.known += count
            row.computed += count
            row.filled += count
            self.allocator.grow(row.name, count)

    def _during(
        self, before: SlotState, num_rows: int, filled: float, taken: float, empty: float
    ) -> SlotState:
        return before._replace(filled=before.filled + filled, reserved=before.reserved - filled)

    def _ledger_ahead(self, ledger: GroupLedger, done: int, blocks_taken: int) -> GroupLedger:
        slots = ledger.slots
        filled = len(self._running) * (done + 1)
        return replace(
            ledger,
            slots=replace(slots, filled=slots.filled + filled, promised=slots.promised - filled),
            step=ledger.step + done + 1,
            logical_tokens=ledger.logical_tokens + filled,
        )
