"""What too much demand costs: the real scheduler on a simulated H200, in simulated time.

The same requests come to the same pool twice. Once the demand is twice the pool throughout: those
inside ask for twice as many slots as there are, and another comes whenever one ends. Once, as the
baseline, only as many are let in as are sure to fit until their ends, so that nobody is ever
preempted: no server can know that, for it takes the length of every answer beforehand. No prefix is
shared. Units: tokens, blocks, simulated seconds.

What the figures mean. Steps may compute enough tokens that blocks run out before the step's budget
does: 618 requests run on average in the pool of an H200, 501 in the baseline, and others wait all
the time. Few or no preemptions are then the watermark's doing, not for want of pressure: without it
the same 3,500 requests saw 598 preemptions, and 622 ran instead of 618. In small pools, where
endings come less evenly, some are preempted with it too (`--blocks 1500`). A ratio near 1 says that
the device is busy either way; far above 1 says that the baseline leaves memory idle, as it must.
"""

from collections.abc import Callable
from dataclasses import dataclass

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.ledger import PreemptionCounts
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.simulated.roofline import H200, LLAMA_8B, step_seconds
from blockyard.scheduler.simulated.simulation import (
    Outcome,
    SimulatedDevice,
    log_normal_requests,
    run_closed_loop,
)

__all__ = ["OversubscriptionBench", "measure_oversubscription"]

_BLOCK_SIZE = 16
_MEMORY_BYTES = 141e9
_USABLE_SHARE = 0.9
_ACTIVATION_BYTES = 4e9
_HOST_BYTES = 64e9
_CHUNK = 512
_STEP_TOKENS = 8192
"""With 2,048 prefill would be the limit and the pool never full: steps with 597 decodes have tokens
left for as many newcomers as end meanwhile."""

_PROMPT_MEAN = 1000
_OUTPUT_MEAN = 400
_LONGEST = 4096
_SEED = 20


@dataclass(frozen=True, slots=True)
class OversubscriptionBench:
    """The figures.

    Attributes:
        goodput_ratio: useful tokens a second under twice the demand, to the baseline's. Useful is
            what is computed for the first time.
        recomputed_ratio: tokens computed again, to useful ones.
        zero_progress_steps: plans that computed nothing while work waited.
        preemptions: by kind.
    """

    goodput_ratio: float
    recomputed_ratio: float
    zero_progress_steps: int
    preemptions: dict[str, int]


def measure_oversubscription(
    num_blocks: int | None = None, progress: Callable[[str], None] = lambda _: None
) -> OversubscriptionBench:
    """Run both; takes some ten seconds. `num_blocks` is what an H200 has room for if not given."""
    pool = num_blocks or _h200_blocks()
    progress(f"as many requests as are sure to fit in {pool:,} blocks")
    baseline, _ = _run(pool, demand=1.0, never_over=True)
    progress("requests for twice as many blocks")
    over, preempted = _run(pool, demand=2.0, never_over=False)
    return OversubscriptionBench(
        goodput_ratio=round(over.useful_tokens_per_second / baseline.useful_tokens_per_second, 4),
        recomputed_ratio=round(over.recomputed_ratio, 4),
        zero_progress_steps=over.zero_progress_steps,
        preemptions={"swap": preempted.swapped, "recompute": preempted.recomputed},
    )


def _h200_blocks() -> int:
    weights = LLAMA_8B.num_parameters * LLAMA_8B.bytes_per_element
    room = _MEMORY_BYTES * _USABLE_SHARE - weights - _ACTIVATION_BYTES
    return int(room // (LLAMA_8B.kv_bytes_per_token * _BLOCK_SIZE))


def _run(num_blocks: int, demand: float, never_over: bool) -> tuple[Outcome, PreemptionCounts]:
    """One run: twice as many requests as fit end before counting begins, then four times so."""
    block_bytes = LLAMA_8B.kv_bytes_per_token * _BLOCK_SIZE
    config = SchedulerConfig(
        max_context_tokens=2 * _LONGEST,
        block_size=_BLOCK_SIZE,
        max_running=1024,
        max_step_tokens=_STEP_TOKENS,
        max_waiting=1_000_000,
    )
    slots = num_blocks * _BLOCK_SIZE
    fitting = slots // (_PROMPT_MEAN + _OUTPUT_MEAN)
    rates = RateMeter(
        block_bytes,
        prefill_tokens_per_second=_CHUNK / step_seconds(LLAMA_8B, H200, [0], [_CHUNK]),
        link_bytes_per_second=H200.link_bytes_per_second,
    )
    scheduler = Scheduler(config, num_blocks, int(_HOST_BYTES // block_bytes), rates)
    outcome = run_closed_loop(
        scheduler,
        SimulatedDevice(LLAMA_8B, H200, _BLOCK_SIZE),
        log_normal_requests(_SEED, _PROMPT_MEAN, _OUTPUT_MEAN, _LONGEST),
        demand_slots=int(demand * slots),
        warm_up=max(200, 2 * fitting),
        measured=max(600, 4 * fitting),
        never_over=never_over,
    )
    return outcome, scheduler.ledger().preempted
