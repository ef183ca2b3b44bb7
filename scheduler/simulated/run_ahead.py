"""Many decode steps at once, with the books that single steps would leave.

For simulations: workers hear nothing of it. Steady steps are those in which everybody who runs
computes its newest token, nobody ends, comes or waits, and blocks are taken in the first step and
filled in the last one only. Whoever owns the clock decides how many of them are done. Units:
steps, blocks, token slots.
"""

from collections.abc import Callable, Sequence

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.request import Request

__all__ = ["run_ahead", "steady_steps"]


def steady_steps(batch: Batch) -> int:
    """How many steps from now on are steady; 0 when the very next is not.

    Between steps, with every step acknowledged.
    """
    pool = batch.pool
    if batch.num_waiting or pool.num_fenced or not batch.running or batch.queue.contended:
        return 0
    if len(batch.running) > batch.config.max_step_tokens:
        return 0
    steps = batch.config.max_context_tokens
    starved = pool.num_available
    # The youngest first: if anybody is still computing a prompt, it is that one.
    for request in reversed(batch.running):
        known = len(request.tokens)
        if not _decodes(request, known):
            return 0
        room = request.table.num_slots - request.num_computed
        if not room:
            starved -= 1
            room = batch.config.block_size
        steps = min(steps, room, request.end_at - known - 1)
    return steps if starved >= 0 else 0


def run_ahead(
    batch: Batch, step: int, seconds: Sequence[float], answer: Callable[[str], int]
) -> None:
    """Do steady steps, at most as many as `steady_steps` has just told.

    Args:
        batch: of the scheduler.
        step: number of the last of these steps.
        seconds: how long each of them takes.
        answer: the token that the request of this id answers in each of them.
    """
    pool, holdings, count = batch.pool, batch.holdings, len(seconds)
    for request in batch.running:
        if request.num_computed == request.table.num_slots:
            block_ids = pool.allocate(1)
            if block_ids is None:
                raise ValueError("no block is available; ask steady_steps first")
            request.table.extend(block_ids)
            batch.watermark.observe(1, 0)
    for request in batch.running:
        request.last_step = step
        request.num_computed += count
        request.tokens.extend((answer(request.request_id),) * count)
    holdings.promise(count * len(batch.running))
    holdings.fulfil(count * len(batch.running))
    for request in batch.running:
        if request.num_computed >= request.publish_at:
            batch.publish(request)
    for length in seconds:
        batch.parking.note_step(0, len(batch.running), 0, length)
    batch.acknowledge(step)


def _decodes(request: Request, known: int) -> bool:
    """Whether a request computes its newest token next, and nothing can end it but its length."""
    return (
        request.num_computed + 1 == known
        and request.num_output > 0
        and not request.pending_forks
        and request.table.num_writable == request.table.num_slots
        and request.handle is not None
        and not request.spec.sampling.stop_token_ids
        and request.spec.deadline_seconds is None
    )
