"""A scheduler in the place of one whose blocks are gone: the same requests, nothing computed.

For when a group of ranks was lost and formed anew, or has other weights. Counts start again at 0,
as in a new process.
"""

from dataclasses import replace

from blockyard.scheduler.scheduler import Scheduler

__all__ = ["restarted"]


def restarted(scheduler: Scheduler, now: float, weight_version: str) -> Scheduler:
    """A scheduler with the same limits and rates, in which every request of the old one waits.

    Each goes on from the tokens that were committed; a step that was in flight never was. The old
    one is not to be used any more.
    """
    fresh = Scheduler(
        replace(scheduler.config, weight_version=weight_version),
        scheduler._num_blocks,
        scheduler.ledger().host_blocks.total,
        scheduler.batch.parking.rates,
    )
    for request_id in scheduler.roster.request_ids:
        snapshot = scheduler.snapshot(request_id, now)
        if snapshot is not None:
            fresh.resume(snapshot, now)
    if scheduler._draining:
        fresh.start_drain()
    return fresh
