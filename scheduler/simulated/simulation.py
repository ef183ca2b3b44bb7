"""Runs the real scheduler against a device that only takes time, simulated time at that.

A closed loop: whenever the requests inside ask for less than `demand_slots`, another one comes. So
load is a property of the run and not of a clock, and two policies see the same requests in the
same order. Tokens mean nothing here; who holds which block when, and what is computed twice, is
exactly what the scheduler does in earnest. Units: tokens, slots, blocks, simulated seconds.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.simulated.roofline import DeviceSpeed, ModelShape, step_seconds

__all__ = ["Outcome", "RequestShape", "SimulatedDevice", "log_normal_requests", "run_closed_loop"]


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How long a request's prompt is and how long its answer will be."""

    prompt_tokens: int
    output_tokens: int

    @property
    def slots(self) -> int:
        """Slots that it holds at its end; the last token is never read back."""
        return self.prompt_tokens + self.output_tokens - 1


def log_normal_requests(
    seed: int,
    prompt_mean: float,
    output_mean: float,
    longest: int,
    sigma: float = 0.7,
) -> Iterator[RequestShape]:
    """Endless requests with log-normal lengths of the given means, cut at `longest` tokens each.

    A sigma of 0.7 gives the spread of recorded chat traffic: the longest twentieth of requests is
    three times the median and more.
    """
    rng = random.Random(seed)

    def length(mean: float) -> int:
        drawn = rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)
        return max(1, min(longest, round(drawn)))

    while True:
        yield RequestShape(length(prompt_mean), length(output_mean))


@dataclass(slots=True)
class _Row:
    """What the device remembers of a handle."""

    name: str
    computed: int = 0


class SimulatedDevice:
    """Takes plans, answers tokens that mean nothing, and tells how long a step took.

    Copies out run beside the step and hide behind it; copies in must end before it begins.
    """

    def __init__(self, shape: ModelShape, speed: DeviceSpeed, block_size: int) -> None:
        self._shape = shape
        self._speed = speed
        self._block_seconds = block_size * shape.kv_bytes_per_token / speed.link_bytes_per_second

    def execute(self, plan: StepPlan) -> tuple[StepResult, float]:
        """The result of a step, and the simulated seconds until it is there."""
        compute = step_seconds(self._shape, self._speed, plan.starts, plan.counts)
        out = len(plan.swap_outs) * self._block_seconds
        back = len(plan.swap_ins) * self._block_seconds
        result = StepResult(
            step=plan.step,
            token_ids=(0,) * plan.num_samples,
            compute_seconds=compute,
            copy_seconds=out + back,
            moved_blocks=len(plan.swap_outs) + len(plan.swap_ins),
        )
        return result, max(compute, out) + back


@dataclass(slots=True)
class Outcome:
    """What a run came to, between its warm-up and its end.

    Useful tokens are computed for the first time, prompt and output alike; recomputed ones are
    computed again after a preemption.
    """

    seconds: float = 0.0
    steps: int = 0
    finished: int = 0
    output_tokens: int = 0
    useful_tokens: int = 0
    recomputed_tokens: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    preemptions: int = 0
    zero_progress_steps: int = 0
    running_sum: int = 0
    answer_seconds: list[float] = field(default_factory=list)
    """From arrival to the last token, of each request that finished."""

    @property
    def useful_tokens_per_second(self) -> float:
        """Goodput."""
        return self.useful_tokens / self.seconds

    @property
    def recomputed_ratio(self) -> float:
        """Recomputed tokens for each useful one."""
        return self.recomputed_tokens / self.useful_tokens

    @property
    def mean_running(self) -> float:
        """Requests in a step."""
        return self.running_sum / self.steps


def run_closed_loop(
    scheduler: Scheduler,
    device: SimulatedDevice,
    requests: Iterator[RequestShape],
    demand_slots: int,
    warm_up: int,
    measured: int,
    *,
    never_over: bool = False,
) -> Outcome:
    """Run until `measured` requests have finished after the first `warm_up`.

    Args:
        scheduler: empty; it is left with requests inside.
        device: where steps take their time.
        requests: who comes, in this order.
        demand_slots: requests are submitted until those inside will need this many slots.
        warm_up: requests that finish before anything is counted.
        measured: requests that finish while it is.
        never_over: the last one waits outside rather than take the demand over `demand_slots`.
    """
    run = _Run(scheduler, device, requests, demand_slots, never_over)
    while run.outcome.finished < warm_up:
        run.step()
    run.begin_counting()
    while run.outcome.finished < measured:
        run.step()
    return run.outcome


class _Run:
    """One closed loop while it runs."""

    def __init__(
        self,
        scheduler: Scheduler,
        device: SimulatedDevice,
        requests: Iterator[RequestShape],
        demand_slots: int,
        never_over: bool,
    ) -> None:
        self.outcome = Outcome()
        self._scheduler = scheduler
        self._device = device
        self._requests = requests
        self._demand_slots = demand_slots
        self._never_over = never_over
        self._next = next(requests)
        self._now = 0.0
        self._demand = 0
        self._number = 0
        self._inside: dict[str, RequestShape] = {}
        self._arrived: dict[str, float] = {}
        self._reached: dict[str, int] = {}
        self._handles: dict[int, str] = {}
        self._preemptions_before = 0

    def begin_counting(self) -> None:
        """Forget the warm-up."""
        self._preemptions_before = self._scheduler.ledger().preemptions
        self.outcome = Outcome()

    def step(self) -> None:
        """Let requests in, plan, execute, commit."""
        self._submit()
        plan = self._scheduler.plan(self._now)
        if plan is None:
            self.outcome.zero_progress_steps += 1
            if self.outcome.zero_progress_steps > 1000:
                raise AssertionError("nothing can be planned although work waits")
            return
        self._count(plan)
        result, seconds = self._device.execute(plan)
        self._now += seconds
        self.outcome.seconds += seconds
        for update in self._scheduler.commit(result, self._now):
            self.outcome.output_tokens += len(update.token_ids)
            if update.finish_reason is not None:
                self._end(update.request_id)
        self._scheduler.acknowledge(plan.step)
        self.outcome.preemptions = self._scheduler.ledger().preemptions - self._preemptions_before

    def _submit(self) -> None:
        while self._demand < self._demand_slots:
            shape = self._next
            if self._never_over and self._demand + shape.slots > self._demand_slots:
                return
            name = str(self._number)
            self._number += 1
            # The first token differs from request to request, so nothing is shared.
            prompt = (self._number,) * shape.prompt_tokens
            sampling = SamplingParams(max_tokens=shape.output_tokens, seed=self._number)
            self._scheduler.submit(RequestSpec(name, prompt, sampling), self._now)
            self._inside[name] = shape
            self._arrived[name] = self._now
            self._reached[name] = 0
            self._demand += shape.slots
            self._next = next(self._requests)

    def _count(self, plan: StepPlan) -> None:
        """Tell tokens computed for the first time from those computed again."""
        outcome = self.outcome
        for handle in plan.forgotten:
            self._handles.pop(handle, None)
        for admission in plan.admitted:
            self._handles[admission.handle] = str(admission.sampling.seed - 1)
        useful = 0
        for handle, start, count in zip(plan.handles, plan.starts, plan.counts, strict=True):
            name = self._handles[handle]
            end = start + count
            new = end - max(start, self._reached[name])
            if new > 0:
                useful += new
                self._reached[name] = end
        outcome.useful_tokens += useful
        outcome.recomputed_tokens += len(plan.token_ids) - useful
        outcome.swapped_out_blocks += len(plan.swap_outs)
        outcome.swapped_in_blocks += len(plan.swap_ins)
        outcome.steps += 1
        outcome.running_sum += len(plan.handles)

    def _end(self, name: str) -> None:
        shape = self._inside.pop(name)
        self._demand -= shape.slots
        del self._reached[name]
        self.outcome.finished += 1
        self.outcome.answer_seconds.append(self._now - self._arrived.pop(name))
