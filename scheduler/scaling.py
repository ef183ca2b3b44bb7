"""How many groups there should be. Pure: decides from the books it is shown and its own memory.

Four needs are counted in groups, and the largest wins: memory (blocks held, blocks that the queue
wants, and what both grow by until a new group would be there), places in steps, work that queues,
and work that comes in against what a group was seen to get through while it had a queue. Growing
is decided at once, shrinking only after a quiet time in which fewer would have done throughout,
with room to spare: the two thresholds lie apart, so that steady load never makes the number swing.
Knows no processes and no clock. Units: blocks, tokens, requests, seconds.
"""

import math
from dataclasses import dataclass, replace

from blockyard.scheduler.group_load import ClusterLoad, GroupLoad

__all__ = ["ScalingDecision", "ScalingMemory", "ScalingPolicy", "decide_groups"]

_RATE_SECONDS = 30.0
"""Over about so long the work that comes in is averaged."""

_GROWTH_SECONDS = 15.0
"""Over about so long the growth of memory is averaged: less would chase single requests."""

_BACKLOG_LEAST = 5.0
_BACKLOG_WINDOW = 60.0
"""Seconds with a queue, of all groups, after which it is known what one gets through, and over
which that is averaged."""

_BUSY_SHARE = 0.9
"""Part of what a group gets through that may come in before another is wanted."""


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """What an operator decides.

    Attributes:
        min_groups, max_groups: bounds; a minimum of 0 lets an idle cluster go to none.
        queue_seconds: work that may queue, in seconds of one group for each group.
        full_share: part of all blocks, or places, from which on another group is wanted.
        fit_share: part of what would be left that may be in use when a group goes.
        ahead_seconds: how far growth is looked ahead; about what a group takes to start.
        quiet_seconds: fewer groups must have been enough for so long before one goes.
        idle_seconds: with no request at all for so long the last group goes too.
    """

    min_groups: int = 1
    max_groups: int = 1
    queue_seconds: float = 2.0
    full_share: float = 0.85
    fit_share: float = 0.6
    ahead_seconds: float = 30.0
    quiet_seconds: float = 120.0
    idle_seconds: float = 300.0

    def __post_init__(self) -> None:
        """Refuse what contradicts itself, with what to give instead."""
        if not 0 <= self.min_groups <= self.max_groups or self.max_groups < 1:
            raise ValueError(
                f"groups from {self.min_groups} to {self.max_groups}: give 0 <= min <= max and "
                "max >= 1"
            )
        if not 0 < self.fit_share < self.full_share <= 1:
            raise ValueError(
                f"fit_share {self.fit_share} and full_share {self.full_share}: give "
                "0 < fit_share < full_share <= 1, or the number of groups would swing"
            )
        for name in ("queue_seconds", "ahead_seconds", "quiet_seconds", "idle_seconds"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; give a time above 0")


@dataclass(frozen=True, slots=True)
class ScalingMemory:
    """What one decision leaves to the next. The default is that of a cluster never looked at."""

    seen_at: float | None = None
    idle_since: float | None = None
    wanted_blocks: float = 0.0
    growth: float = 0.0
    """Blocks a second, averaged."""
    arriving: float = 0.0
    """Tokens of work that come in each second, averaged."""
    backlog_tokens: float = 0.0
    """Work let in by groups while they had a queue, and below the seconds that took them."""
    backlog_seconds: float = 0.0
    queues: tuple[tuple[str, int, int], ...] = ()
    """Of each group: id, admitted tokens, queued tokens."""
    outside_tokens: int = 0
    """Of those that waited for any of them."""
    watched_since: float | None = None
    """The moment from which on the number of groups has not changed."""
    needs: tuple[tuple[float, int], ...] = ()
    """Moments since then, and groups that would have done with room to spare; falling."""

    @property
    def capacity(self) -> float:
        """Tokens of work a second that one group gets through; 0: not seen for long enough."""
        if self.backlog_seconds < _BACKLOG_LEAST:
            return 0.0
        return self.backlog_tokens / self.backlog_seconds


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """How many groups there should be, why, and what to remember."""

    groups: int
    reason: str
    memory: ScalingMemory


def decide_groups(
    policy: ScalingPolicy, load: ClusterLoad, memory: ScalingMemory, now: float
) -> ScalingDecision:
    """How many groups there should be now. Call it every second or so, with its last memory."""
    memory = _look(load, memory, now)
    there = len(load.groups) + load.starting
    if load.resting:
        # What waits is not for want of groups, and no request is no sign that none is wanted.
        memory = replace(memory, idle_since=None, watched_since=None, needs=())
        return ScalingDecision(there, "the model rests", memory)
    bounds = (policy.min_groups, policy.max_groups)
    wanted, reason = max(_needs(policy, load, memory, policy.full_share))
    if load.unbound_requests and wanted < 1:
        wanted, reason = 1, "requests wait and no group is up"
    wanted = _within(wanted, bounds)
    if wanted > there:
        reason = reason if there >= policy.min_groups else "fewer are up than the minimum"
        return ScalingDecision(wanted, reason, replace(memory, watched_since=None, needs=()))
    enough, _ = max(_needs(policy, load, memory, policy.fit_share))
    idle = memory.idle_since is not None and now - memory.idle_since >= policy.idle_seconds
    # Averages never quite reach nothing, so idleness is told by requests alone.
    enough = _within(0 if idle else max(1, enough), bounds)
    since = now if memory.watched_since is None else memory.watched_since
    # What a later need reaches or exceeds can never be the largest again.
    recent = now - policy.quiet_seconds
    needs = tuple(entry for entry in memory.needs if entry[0] > recent and entry[1] > enough)
    needs = (*needs, (now, enough))
    memory = replace(memory, watched_since=since, needs=needs)
    most = needs[0][1]
    if since <= recent and most < there and not load.starting:
        why = "no request for a long time" if not most else "fewer have been enough for long"
        return ScalingDecision(most, why, replace(memory, watched_since=None, needs=()))
    if there > policy.max_groups:
        return ScalingDecision(policy.max_groups, "more are up than the maximum", memory)
    return ScalingDecision(there, "as many as are needed", memory)


def _needs(
    policy: ScalingPolicy,
    load: ClusterLoad,
    memory: ScalingMemory,
    share: float,
) -> list[tuple[int, str]]:
    """Groups that each kind of load asks for, when so much of each may be in use."""
    groups = load.groups
    if not groups:
        return [(0, "nothing runs")]
    count = len(groups)
    blocks = sum(group.total_blocks for group in groups) / count
    places = sum(group.places for group in groups) / count
    wanted = memory.wanted_blocks
    # What was seen to grow may double, no more: a start from nothing always looks steep.
    coming = wanted + min(wanted, max(0.0, memory.growth) * policy.ahead_seconds)
    queued_seconds = sum(_queued_seconds(group, memory.capacity) for group in groups)
    rates = [group.prefill_tokens_per_second or memory.capacity for group in groups]
    if any(rates):
        queued_seconds += load.queued_tokens * count / sum(rates)
    requests = sum(group.requests for group in groups) + load.queued_requests
    # Seconds of queue shrink by the share, too, or one threshold would do for both ways.
    bearable = policy.queue_seconds * share / policy.full_share
    needs = [
        (math.ceil(coming / (blocks * share)), "blocks run short"),
        (math.ceil(requests / (places * share)), "places run short"),
        (math.ceil(queued_seconds / bearable), "work queues up"),
    ]
    if memory.capacity:
        busy = _BUSY_SHARE * share / policy.full_share
        needs.append((math.ceil(memory.arriving / (memory.capacity * busy)), "more work comes in"))
    return needs


def _queued_seconds(group: GroupLoad, capacity: float) -> float:
    rate = group.prefill_tokens_per_second or capacity
    return group.queued_tokens / rate if rate else 0.0


def _look(load: ClusterLoad, memory: ScalingMemory, now: float) -> ScalingMemory:
    """Bring averages and what was seen of each group up to date."""
    queues = tuple((g.group_id, g.admitted_tokens, g.queued_tokens) for g in load.groups)
    wanted = float(sum(group.wanted_blocks for group in load.groups))
    if load.groups:
        wanted += -(-load.queued_tokens // load.groups[0].block_size)
    outside = load.unbound_requests or load.queued_requests
    # A group that starts is wanted by somebody, however long its start takes.
    busy = outside or load.starting or any(group.requests for group in load.groups)
    idle_since = None if busy else (now if memory.idle_since is None else memory.idle_since)
    seen = replace(
        memory,
        seen_at=now,
        idle_since=idle_since,
        wanted_blocks=wanted,
        queues=queues,
        outside_tokens=load.queued_tokens,
    )
    if memory.seen_at is None or now <= memory.seen_at:
        return seen
    passed = now - memory.seen_at
    before = {group_id: (admitted, queued) for group_id, admitted, queued in memory.queues}
    arrived = load.queued_tokens - memory.outside_tokens
    tokens, seconds = memory.backlog_tokens, memory.backlog_seconds
    for group_id, admitted, queued in queues:
        admitted_before, queued_before = before.get(group_id, (0, 0))
        arrived += max(0, admitted - admitted_before + queued - queued_before)
        if queued and queued_before:
            # With a queue all the time it let in as much as it could.
            tokens += admitted - admitted_before
            seconds += passed
    fade = min(1.0, _BACKLOG_WINDOW / seconds) if seconds else 1.0
    arriving = _averaged(memory.arriving, max(0, arrived) / passed, passed, _RATE_SECONDS)
    growth = (wanted - memory.wanted_blocks) / passed
    seen = replace(
        seen,
        growth=_averaged(memory.growth, growth, passed, _GROWTH_SECONDS),
        arriving=arriving,
        backlog_tokens=tokens * fade,
        backlog_seconds=seconds * fade,
    )
    borne = arriving / len(queues) if queues else 0.0
    if seen.capacity and borne > seen.capacity and not any(queued for _, _, queued in queues):
        # Traffic has become easier: without any queue each gets through more than was known.
        return replace(seen, backlog_tokens=borne * seen.backlog_seconds)
    return seen


def _averaged(mean: float, value: float, passed: float, over: float) -> float:
    return mean + (1 - math.exp(-passed / over)) * (value - mean)


def _within(count: int, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(bounds[1], count))
