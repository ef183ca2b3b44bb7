"""Makes room scarce on purpose: host blocks that nobody can have for a while; for tests.

The books go on to add up: what is set aside is held.
"""

from blockyard.scheduler.scheduler import Scheduler

__all__ = ["set_host_blocks_aside"]


def set_host_blocks_aside(scheduler: Scheduler, aside: bool) -> int:
    """Set aside all host blocks that can be had now, or give all of those back; how many."""
    host = scheduler.batch.parking.host
    return host.set_aside() if aside else host.give_back()
