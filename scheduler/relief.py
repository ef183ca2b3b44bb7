"""Requests without a place in one group, and another group that has room for them. Pure.

A group with a queue gives to one without, that runs fewer and keeps blocks to spare: what moves is
computed again there, and there it need not wait. Knows nothing of processes. Units: requests,
blocks, tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.standing import SPARE_SHARE

__all__ = ["GROWTH", "Relief", "choose_relief", "choose_yielding", "may_yield", "room_for_others"]

GROWTH = 2
"""So many times what a request holds now it may hold in the end, as far as anybody knows."""
_MOST_REQUESTS = 8
"""At a time: the books must have come in before there is another time."""


@dataclass(frozen=True, slots=True)
class Relief:
    """Who gives, who takes, and at most how much."""

    giver: str
    taker: str
    requests: int
    tokens: int


def choose_relief(groups: Sequence[Candidate]) -> Relief | None:
    """What to move among groups of one model; None when nobody is helped by any move."""
    givers = [group for group in groups if _num_queued(group)]
    takers = [group for group in groups if not _num_queued(group) and room_for_others(group) > 0]
    if not givers or not takers:
        return None
    giver = max(givers, key=lambda group: (group.ledger.queued_tokens, group.group_id))
    taker = max(takers, key=lambda group: (room_for_others(group), group.group_id))
    # Alike as they are, one that runs fewer has places left; two never give to each other in turn.
    if taker.ledger.requests.running >= giver.ledger.requests.running:
        return None
    tokens = room_for_others(taker) * taker.ledger.block_size // GROWTH
    mean = max(1, giver.ledger.queued_tokens // _num_queued(giver))
    requests = min(_MOST_REQUESTS, tokens // mean, -(-_num_queued(giver) // 2))
    return Relief(giver.group_id, taker.group_id, requests, tokens) if requests else None


def choose_yielding(scheduler: Scheduler, requests: int, tokens: int) -> tuple[str, ...]:
    """Which requests leave for another group: whole ones without a place, the most urgent first.

    Who waits longest gains most, and the order among those who stay is as it was. At most so many,
    with so many known tokens together.
    """
    queued = scheduler.batch.queue.members()
    waiting = {member.member for member in queued}
    chosen: list[str] = []
    for member in sorted(queued):
        if len(chosen) == requests:
            break
        choices = scheduler.roster.members(member.request_id)
        if member.request_id in chosen or not waiting.issuperset(c.member for c in choices):
            continue
        tokens -= sum(len(choice.tokens) for choice in choices)
        if tokens < 0:
            break
        chosen.append(member.request_id)
    return tuple(chosen)


def may_yield(scheduler: Scheduler, request_id: str) -> bool:
    """Whether a request is here and has no place, with any of its choices."""
    waiting = {member.member for member in scheduler.batch.queue.members()}
    choices = scheduler.roster.members(request_id)
    return bool(choices) and waiting.issuperset(choice.member for choice in choices)


def _num_queued(group: Candidate) -> int:
    requests = group.ledger.requests
    return requests.waiting + requests.parked


def room_for_others(group: Candidate) -> int:
    """Blocks of a group that requests of others may have."""
    return group.free_blocks - int(group.ledger.blocks.total * SPARE_SHARE)
