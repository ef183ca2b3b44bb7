"""Who loses a place in the batch, and for whom. Decides only; the scheduler acts.

Two laws: the oldest request of the highest priority always advances, and nobody is preempted for
a younger equal. Every victim is taken from the least urgent end (lowest priority, then youngest),
and its KV is recomputed when it comes back. `running` is always sorted, most urgent first.
"""

from bisect import bisect_right
from collections.abc import Sequence

from blockyard.scheduler.request import Request, RequestState

__all__ = ["choose_victim", "yielding_to"]


def choose_victim(running: Sequence[Request], needy: Request) -> Request | None:
    """The least urgent running request, if it is less urgent than `needy`.

    None means that `needy` is itself the least urgent: it waits where it is, keeping its blocks.
    Giving them up would help nobody in this step, and whoever needs them in a later one takes
    them then. A victim without blocks yields none, but must go first all the same, or it would
    find blocks at its turn that a more urgent one had just lost.
    """
    last = running[-1]
    return last if needy.urgency < last.urgency else None


def yielding_to(running: Sequence[Request], newcomer: Request) -> Sequence[Request]:
    """Running requests that give up slots and blocks for a waiting one, most urgent first.

    Those of strictly lower priority; or all of them, when the newcomer is more urgent than every
    one: it is then the oldest of the highest priority, and must advance. Before it has held a
    place it has that right against its own tenant only: between tenants turns come before age, and
    who was given a turn is not to lose it to one whose own is still to come.
    """
    if not running:
        return ()
    rank = -newcomer.spec.priority
    if newcomer.urgency < running[0].urgency and (
        newcomer.state is RequestState.PARKED or _one_tenant(running, newcomer)
    ):
        return running[:]
    if running[-1].urgency[0] <= rank:
        return ()
    return running[bisect_right(running, rank, key=_rank) :]


def _one_tenant(running: Sequence[Request], newcomer: Request) -> bool:
    """Whether all running requests of the newcomer's priority are its own tenant's."""
    equals = running[: bisect_right(running, -newcomer.spec.priority, key=_rank)]
    return all(request.spec.tenant == newcomer.spec.tenant for request in equals)


def _rank(request: Request) -> int:
    return -request.spec.priority
