"""The ledger of one scheduler, gathered from the counters of those who own the state."""

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.guessed_rows import GuessedRows
from blockyard.scheduler.ledger import GroupLedger

__all__ = ["ledger_of"]


def ledger_of(
    batch: Batch, step: int, stalled_steps: int, guesses: GuessedRows | None
) -> GroupLedger:
    """The books at this moment; costs the same however many requests run.

    Args:
        batch: places and blocks.
        step: number of the newest step.
        stalled_steps: plans that computed nothing while work waited.
        guesses: rows that check guesses; None: there are none.
    """
    parking = batch.parking
    return GroupLedger(
        blocks=batch.pool.counts(),
        slots=batch.holdings.counts(),
        requests=batch.request_counts(),
        block_size=batch.config.block_size,
        step=step,
        preemptions=batch.num_preemptions,
        stalled_steps=stalled_steps,
        logical_tokens=batch.holdings.logical_tokens,
        prompt_tokens=batch.num_prompt_tokens,
        prefix_hit_tokens=batch.num_prefix_hits,
        recomputed_tokens=batch.num_recomputed,
        merged_blocks=batch.num_merged,
        copied_blocks=batch.num_copied,
        host_blocks=parking.host.counts(),
        preempted=parking.counts(),
        queued_tokens=batch.queue.num_tokens,
        prefill_tokens_per_second=parking.rates.prefill_tokens_per_second,
        guessed_tokens=guesses.num_guessed if guesses is not None else 0,
        right_guesses=guesses.num_right if guesses is not None else 0,
        moves=parking.host.moves,
        wire_bytes_per_second=parking.host.wire_bytes_per_second,
    )
