"""A simulated group with blocks: the real scheduler, on a device that only takes time.

Workers hear of nothing, so tokens are made up; who holds which block when, what is found in the
prefix index and what is computed twice is what the scheduler does in earnest. Units: simulated
seconds, tokens, blocks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from blockyard.scheduler.ledger import BlockCounts, GroupLedger, SlotCounts
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.prefix_view import PrefixView
from blockyard.scheduler.request import RequestRefused, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.simulated.arrivals import Arrival, PromptWriter
from blockyard.scheduler.simulated.group import MOST_STEPS_AHEAD, SimulatedGroup
from blockyard.scheduler.simulated.memory_timeline import SlotState
from blockyard.scheduler.simulated.records import ReplayRecords
from blockyard.scheduler.simulated.step_cost import StepCost

__all__ = ["PagedGroup"]


class PagedGroup(SimulatedGroup):
    """One group that gives its memory out in blocks."""

    def __init__(
        self,
        group_id: str,
        records: ReplayRecords,
        scheduler: Scheduler,
        cost: StepCost,
        prompts: PromptWriter,
    ) -> None:
        ledger = scheduler.ledger()
        size = ledger.block_size
        super().__init__(group_id, records, cost, ledger.blocks.total * size, size)
        self.scheduler = scheduler
        self._prompts = prompts
        self._answers: dict[int, int] = {}
        self._known = PrefixView()
        self._in_flight: StepPlan | None = None
        self._compute_seconds = 0.0

    @property
    def num_queued(self) -> int:
        """Requests that wait for a place."""
        requests = self.ledger().requests
        return requests.waiting + requests.parked

    def known_blocks(self, arrival: Arrival) -> int:
        """Leading blocks of a prompt that could be found here, as far as steps have been done."""
        keys = self._prompts.keys(arrival, self.block_size)
        if not keys:
            return 0
        events = self.scheduler.take_prefix_events()
        self._known.apply(events.removed, (block.key for block in events.stored))
        return self._known.num_known(keys)

    def _take(self, name: str, arrival: Arrival, now: float) -> bool:
        spec = RequestSpec(
            name,
            self._prompts.prompt(arrival),
            # The seed serves as a name that plans repeat at each admission.
            SamplingParams(max_tokens=max(1, arrival.output_tokens), seed=arrival.number),
            # A prompt of which nothing is known finds nothing, and leaves nothing to be found.
            use_prefix_cache=bool(arrival.prefix_ids),
            block_keys=self._prompts.keys(arrival, self.block_size),
        )
        try:
            self.scheduler.submit(spec, now)
        except RequestRefused:
            return False
        return True

    def _start(self, now: float) -> float | None:
        plan = self.scheduler.plan(now)
        if plan is None:
            return None
        self._in_flight = plan
        for handle in plan.forgotten:
            self._answers.pop(handle, None)
        for admission in plan.admitted:
            self._answers[admission.handle] = self._prompts.answer(admission.sampling.seed)
        self._compute_seconds = self._cost.compute_seconds(plan.starts, plan.counts)
        # Copies out run beside the step and hide behind it; copies back must end before it begins.
        out = self._cost.copy_seconds(len(plan.swap_outs))
        return max(self._compute_seconds, out) + self._cost.copy_seconds(len(plan.swap_ins))

    def _finish(self, now: float) -> tuple[Iterable[str], Iterable[str]]:
        plan = self._in_flight
        if plan is None:
            raise ValueError(f"group {self.group_id} has no step in flight")
        self._in_flight = None
        answers = self._answers
        rows = zip(plan.handles, plan.samples, strict=True)
        copied = len(plan.swap_outs) + len(plan.swap_ins)
        result = StepResult(
            step=plan.step,
            token_ids=tuple(answers[handle] for handle, samples in rows if samples),
            compute_seconds=self._compute_seconds,
            copy_seconds=self._cost.copy_seconds(copied),
            moved_blocks=copied,
        )
        updates = self.scheduler.commit(result, now)
        self.scheduler.acknowledge(plan.step)
        ended = [update.request_id for update in updates if update.finish_reason is not None]
        return (update.request_id for update in updates if update.token_ids), ended

    def _read_ledger(self) -> GroupLedger:
        return self.scheduler.ledger()

    def _read_state(self) -> SlotState:
        ledger = self.ledger()
        blocks, slots, size = ledger.blocks, ledger.slots, ledger.block_size
        return SlotState(
            filled=slots.filled,
            reserved=slots.promised,
            internal=slots.empty_tail,
            cached=blocks.cached * size,
            external=0,
            free=(blocks.free + blocks.fenced) * size,
            running=ledger.requests.running,
        )

    def _forget(self) -> None:
        self.scheduler.reset_prefix_cache()

    def _steady_steps(self) -> list[int]:
        return self.scheduler.steady_steps(MOST_STEPS_AHEAD)

    def _context(self) -> tuple[int, int]:
        ledger = self.ledger()
        rows = ledger.requests.running
        return rows, ledger.logical_tokens + rows

    def _run_steps(self, seconds: Sequence[float]) -> None:
        self.scheduler.run_ahead(seconds, lambda name: self._prompts.answer(int(name)))

    def _during(
        self, before: SlotState, num_rows: int, filled: float, taken: float, empty: float
    ) -> SlotState:
        return SlotState(
            filled=before.filled + filled,
            reserved=num_rows,
            internal=before.internal + taken - filled - num_rows,
            cached=before.cached - (taken - empty),
            external=0,
            free=before.free - empty,
            running=before.running,
        )

    def _ledger_ahead(self, ledger: GroupLedger, done: int, blocks_taken: int) -> GroupLedger:
        blocks, slots = ledger.blocks, ledger.slots
        rows = ledger.requests.running
        empty = min(blocks.free, blocks_taken)
        ahead = BlockCounts(
            blocks.total,
            blocks.free - empty,
            blocks.cached - (blocks_taken - empty),
            blocks.active + blocks_taken,
            blocks.fenced,
        )
        tail = slots.empty_tail + blocks_taken * ledger.block_size - rows * (done + 1)
        return replace(
            ledger,
            blocks=ahead,
            slots=SlotCounts(slots.filled + rows * done, rows, tail),
            step=ledger.step + done + 1,
            logical_tokens=ledger.logical_tokens + rows * done,
        )
