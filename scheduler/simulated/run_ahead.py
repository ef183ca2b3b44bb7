"""Many decode steps at once, with the books that single steps would leave.

For simulations: workers hear nothing of it. Steady steps are those in which everybody who runs
computes its newest token, nobody ends or comes, and every block that is needed is there. Whoever
owns the clock decides how many of them are done. Units: steps, blocks, token slots.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, cycle, islice

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.preemption import yielding_to
from blockyard.scheduler.request import Request

__all__ = ["run_ahead", "steady_steps"]


def steady_steps(batch: Batch, most: int) -> list[int]:
    """Blocks that the plans of the coming steady steps take, added up.

    Entry `k` tells of the first `k` steps, so there are as many steps as entries after the first;
    none when the very next step is not steady. Between steps, with every step acknowledged.

    Args:
        batch: of the scheduler.
        most: steps that are of interest.
    """
    pool, running = batch.pool, batch.running
    none = [0]
    if pool.num_fenced or not running or batch.queue.contended or _somebody_may_come(batch):
        return none
    if len(running) > batch.config.max_step_tokens:
        return none
    steps, size = most, pool.block_size
    # How many find their table full after so many steps, and again each `size` steps later.
    full_after = [0] * size
    # The youngest first: if anybody is still computing a prompt, it is that one.
    for request in reversed(running):
        known = len(request.tokens)
        room = request.table.num_slots - request.num_computed
        if room >= size or not _decodes(request, known):
            return none
        full_after[room] += 1
        left = request.end_at - known - 1
        if left < steps:
            steps = left
    taken = list(accumulate(islice(cycle(full_after), max(0, steps)), initial=0))
    while taken[-1] > pool.num_available:
        taken.pop()
    return taken


def run_ahead(
    batch: Batch, step: int, seconds: Sequence[float], answer: Callable[[str], int]
) -> None:
    """Do steady steps, at most as many as `steady_steps` has just told.

    Args:
        batch: of the scheduler.
        step: number of the last of these steps.
        seconds: how long each of them takes.
        answer: the token that the request of this id answers in each of them; no two requests
            answer the same, or they might come to share blocks in the middle.
    """
    pool, holdings, count = batch.pool, batch.holdings, len(seconds)
    merged = batch.num_merged
    for request in batch.running:
        table = request.table
        needed = table.blocks_short(request.num_computed + count)
        if needed:
            block_ids = pool.allocate(needed)
            if block_ids is None:
                raise ValueError("no block is available; ask steady_steps first")
            table.extend(block_ids)
            for _ in block_ids:
                batch.watermark.observe(1, 0)
        request.tokens.extend((answer(request.request_id),) * count)
    for request in batch.out_of_step:
        request.num_computed += count
        request.last_step = step
    batch.lockstep.leap(count, step)
    holdings.promise(count * len(batch.running))
    holdings.fulfil(count * len(batch.running))
    for request in batch.running:
        if request.num_computed >= request.publish_at:
            batch.publish(request)
    if batch.num_merged > merged:
        raise ValueError("two requests have answered the same; steps ahead cannot tell when")
    batch.parking.rates.observe_decodes(seconds)
    batch.acknowledge(step)


def _somebody_may_come(batch: Batch) -> bool:
    """Whether any of those who wait could get a place in the next step."""
    head = batch.queue.head()
    if batch.cache.waits or batch.num_places_left:
        return batch.num_waiting > 0
    return head is not None and bool(yielding_to(batch.running, head))


def _decodes(request: Request, known: int) -> bool:
    """Whether a request computes its newest token next, and nothing can end it but its length."""
    return (
        request.num_computed + 1 == known
        and request.num_output > 0
        and not request.pending_forks
        and not request.sampling.searches
        and request.table.num_writable == request.table.num_slots
        and request.handle is not None
        and not request.spec.sampling.stop_token_ids
        and request.spec.deadline_seconds is None
    )
