"""A witness at the pace of a model: its steps take time, as a model's would. Units: seconds."""

import time
from dataclasses import replace

from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker

__all__ = ["PacedWitness"]


class PacedWitness(WitnessWorker):
    """A witness whose steps take at least so many seconds, as those of a model would.

    It waits before it computes: an engine in the same process tells the news of one step while the
    next one begins, and a model would compute beside that, not in its place.
    """

    def __init__(self, config: WorkerConfig, vocab_size: int, step_seconds: float) -> None:
        super().__init__(config, vocab_size)
        self._step_seconds = step_seconds
        self._compute_seconds = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        """See `WitnessWorker.execute`. It tells that it has computed all the time."""
        start = time.perf_counter()
        end = start + self._step_seconds
        time.sleep(max(0.0, self._step_seconds - self._compute_seconds))
        began = time.perf_counter()
        result = super().execute(plan)
        self._compute_seconds = time.perf_counter() - began
        time.sleep(max(0.0, end - time.perf_counter()))
        return replace(result, compute_seconds=time.perf_counter() - start)
