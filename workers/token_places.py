"""Where the tokens of a step are: positions within their requests, slots in the pool.

Units: tokens; slot = block id * block size + offset.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from blockyard.scheduler.plan import StepPlan

__all__ = ["place_tokens"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def place_tokens(
    plan: StepPlan, tables: Int32, block_size: int
) -> tuple[Int64, Int64, Sequence[int]]:
    """Each token's position and its slot, int64 `[tokens]`, and where each request's tokens end.

    Args:
        plan: the step.
        tables: int32 `[requests, blocks]`, with a block for every position of the step.
        block_size: slots of a block.
    """
    if len(plan.token_ids) == len(plan.handles):
        # One token each, as in most steps: a call of numpy costs more than a few numbers do.
        slots = [
            int(tables[row, start // block_size]) * block_size + start % block_size
            for row, start in enumerate(plan.starts)
        ]
        positions = np.array(plan.starts, dtype=np.int64)
        return positions, np.array(slots, dtype=np.int64), range(1, len(slots) + 1)
    counts = np.array(plan.counts, dtype=np.int64)
    owners = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    starts = np.array(plan.starts, dtype=np.int64)
    positions = np.arange(ends[-1]) - (ends - counts)[owners] + starts[owners]
    blocks = tables[owners, positions // block_size].astype(np.int64)
    return positions, blocks * block_size + positions % block_size, ends.tolist()
