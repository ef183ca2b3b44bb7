"""Who in a whole cluster gives way to a more urgent request, and what becomes of them. Pure.

When every group is full, a request of a higher priority goes where those that must yield to it are
the least urgent and cost least: each is swapped or computed again in its group, or moves to
another that has room. That group's engine takes them by its own laws; what is decided here is
where, and how each goes. Knows nothing of processes. Units: blocks, tokens, seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.relief import GROWTH, room_for_others
from blockyard.scheduler.request import RequestState
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.standing import Standing, Waiting, Yielding
from blockyard.scheduler.way_out import Way, WayOut

__all__ = ["MakingWay", "choose_way", "order_ways_out", "take_movers", "with_way_made"]


@dataclass(frozen=True, slots=True)
class MakingWay:
    """A group that a request can start in, and who gives way to it there; perhaps nobody.

    `seconds` is what that costs: steps that last longer, and the least time that victims stand.
    """

    group_id: str
    victims: tuple[WayOut, ...] = ()
    priority: int | None = None
    """Of the most urgent victim."""
    seconds: float = 0.0


def choose_way(needy: Waiting, groups: Sequence[Candidate], waits_at: str = "") -> MakingWay | None:
    """Where a request can start now, at the least cost; None when it must wait.

    The least urgent yield before the cheapest do: for a group where nobody must yield is the best.
    `waits_at` is the group in whose queue the request is, if it is in one. There its engine makes
    way for it by itself as soon as that is possible: so it is no answer, and none is needed.
    """
    ways = []
    for group in groups:
        way = _way_at(group, needy, groups, waits_at)
        if way is not None:
            ways.append(way)
    best = min(ways, key=_sacrifice, default=None)
    if best is None or any(way.group_id == waits_at for way in ways):
        return None
    return best


def with_way_made(group: Candidate, needy: Waiting, way: MakingWay) -> Candidate:
    """A group as its books will tell of it once the request has taken what was made for it."""
    bound = group.bound_tokens + needy.tokens - group.known_blocks * group.ledger.block_size
    standing = group.standing
    if standing is None:
        return replace(group, bound_tokens=bound, known_blocks=0)
    gone = {victim.request_id for victim in way.victims}
    victims = [other for other in standing.yielding if other.request_id in gone]
    places = standing.places_left - needy.places + sum(other.has_place for other in victims)
    return replace(
        group,
        bound_tokens=bound - sum(other.blocks for other in victims) * group.ledger.block_size,
        known_blocks=0,
        standing=replace(
            standing,
            yielding=tuple(other for other in standing.yielding if other.request_id not in gone),
            places_left=places,
        ),
    )


def order_ways_out(scheduler: Scheduler, beneficiary: str, ways: Sequence[WayOut]) -> int:
    """Note how requests that run go, should they be preempted for `beneficiary`; how many do."""
    noted = 0
    for way in ways:
        for member in scheduler.roster.members(way.request_id):
            if member.state is RequestState.RUNNING or member.table.block_ids:
                member.way_out = beneficiary, way
                noted += 1
    return noted


def take_movers(scheduler: Scheduler) -> tuple[WayOut, ...]:
    """Requests that were preempted to go on at another group, and have not begun again here."""
    movers = []
    for request in scheduler.batch.parking.take_movers():
        alone = len(scheduler.roster.members(request.request_id)) == 1
        if request.way_out is not None and request.state is RequestState.PARKED and alone:
            movers.append(request.way_out[1])
    return tuple(movers)


def _sacrifice(way: MakingWay) -> tuple[float, float, int, str]:
    priority = -math.inf if way.priority is None else way.priority
    return priority, way.seconds, len(way.victims), way.group_id


def _way_at(
    group: Candidate, needy: Waiting, groups: Sequence[Candidate], waits_at: str
) -> MakingWay | None:
    """What it would take for a request to start in one group; None when it could not."""
    standing, size = group.standing, group.ledger.block_size
    short = -(-needy.tokens // size) - group.known_blocks - group.free_blocks
    if standing is None:
        return MakingWay(group.group_id) if short <= 0 else None
    ahead = standing.waiting
    if ahead is not None and ahead.priority >= needy.priority and group.group_id != waits_at:
        return None
    missing = needy.places - standing.places_left
    if (
        short <= 0
        and missing <= 0
        and (short + standing.watermark <= 0 or _yields(standing, needy.priority))
    ):
        return MakingWay(group.group_id)
    victims: list[tuple[Yielding, int]] = []
    for other in standing.yielding:
        if (short <= 0 and missing <= 0) or other.priority >= needy.priority:
            break
        victims.append((other, min(max(0, short), other.blocks)))
        short -= other.blocks
        missing -= other.has_place
    if short > 0 or missing > 0 or not victims:
        return None
    takers = [other for other in groups if other is not group and other.group_id != waits_at]
    ways, seconds = _ways_out(victims, standing, needy, size, takers)
    return MakingWay(group.group_id, ways, max(victim.priority for victim, _ in victims), seconds)


def _yields(standing: Standing, priority: int) -> bool:
    """Whether somebody runs there who is less urgent: room is not kept for those to grow into."""
    return any(other.has_place and other.priority < priority for other in standing.yielding)


def _ways_out(
    victims: Sequence[tuple[Yielding, int]],
    standing: Standing,
    needy: Waiting,
    block_size: int,
    takers: Sequence[Candidate],
) -> tuple[tuple[WayOut, ...], float]:
    """The cheapest way for each victim, which gives so many blocks, and what all that costs."""
    rates = standing.rates
    # Who stays stands at least until the prompt of who came is computed.
    stands = rates.recompute_seconds(needy.tokens)
    room = {taker.group_id: _room(taker) for taker in takers}
    host, before, total = standing.host_blocks, 0, 0.0
    ways: list[WayOut] = []
    for victim, blocks in victims:
        swap = rates.swap_seconds(blocks, before) if blocks <= host else math.inf
        recompute = rates.recompute_seconds(min(blocks * block_size, victim.tokens))
        stays = min(swap, recompute) + (stands if victim.has_place else 0.0)
        taker, moves = _best_taker(victim, takers, room, standing)
        if taker is not None and moves <= stays:
            room[taker.group_id] -= _growing(victim, taker)
            ways.append(WayOut(victim.request_id, Way.MOVE, taker.group_id))
            total += moves
        elif swap < recompute:
            host, before = host - blocks, before + blocks
            ways.append(WayOut(victim.request_id, Way.SWAP))
            total += stays
        else:
            ways.append(WayOut(victim.request_id, Way.RECOMPUTE))
            total += stays
    return tuple(ways), total


def _best_taker(
    victim: Yielding, takers: Sequence[Candidate], room: dict[str, int], standing: Standing
) -> tuple[Candidate | None, float]:
    """The group that goes on with a victim soonest, and the seconds that it takes to."""
    best: tuple[Candidate | None, float] = (None, math.inf)
    for taker in takers if victim.movable and victim.has_place else ():
        if room[taker.group_id] < _growing(victim, taker):
            continue
        rate = taker.ledger.prefill_tokens_per_second
        recompute = victim.tokens / rate if rate else math.inf
        seconds = min(recompute, _bring_seconds(victim, taker, standing))
        if best[0] is None or seconds < best[1]:
            best = taker, seconds
    return best


def _bring_seconds(victim: Yielding, taker: Candidate, standing: Standing) -> float:
    """What it takes to bring a victim's blocks over, where both sides have room to save them."""
    blocks = -(-victim.tokens // taker.ledger.block_size)
    wire = taker.ledger.wire_bytes_per_second
    if not wire or blocks > min(standing.host_blocks, taker.ledger.host_blocks.free):
        return math.inf
    return blocks * standing.rates.block_bytes / wire


def _growing(victim: Yielding, taker: Candidate) -> int:
    """Blocks that a victim may hold at another group in the end, as far as anybody knows."""
    return -(-victim.tokens * GROWTH // taker.ledger.block_size)


def _room(taker: Candidate) -> int:
    """Blocks that a group gives to those of another: none where anybody waits or places lack."""
    return room_for_others(taker) if taker.standing is None else 0
