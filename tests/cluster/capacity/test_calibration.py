from blockyard.cluster.capacity.calibration import CALIBRATION_BLOCKS, calibrate_device
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.simulated.measured_cost import MeasuredCost
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker


class Watched(WitnessWorker):
    """Remembers how large the steps were."""

    sizes: list[tuple[int, int]]

    def execute(self, plan: StepPlan) -> StepResult:
        self.sizes.append((len(plan.counts), sum(plan.counts)))
        return super().execute(plan)


def test_steps_of_all_sizes_within_the_limits_are_measured() -> None:
    config = SchedulerConfig(max_context_tokens=512, max_running=8, max_step_tokens=128)
    worker = Watched(WorkerConfig(model_dir="", max_context_tokens=512), 1000)
    worker.sizes = []
    profile = worker.load()
    worker.allocate(CALIBRATION_BLOCKS, 0)
    told: list[str] = []
    device = calibrate_device(
        "here", worker, profile, config, CALIBRATION_BLOCKS, 10**9, told.append
    )
    assert isinstance(device.speed, MeasuredCost)
    assert device.speed.token_counts[0] == 1
    assert device.speed.token_counts[-1] == 128
    assert device.speed.block_bytes == profile.block_bytes
    assert device.speed.decode_seconds(8, 800) > 0
    assert max(rows for rows, _ in worker.sizes) == 8
    assert max(tokens for _, tokens in worker.sizes) == 128
    assert "8 requests with 128 tokens" in told
    assert not any("512" in what for what in told)
