"""Why a request waits: what it lacks, who has it, and for how long that may last.

A pure function of a view of the scheduler at one moment, made for people who ask and not for
steps: it walks the queue and everyone running. The estimate takes everyone to the end of their
max_tokens at the measured rates, so it is the latest time if nobody more urgent comes; most answers
end sooner. Units: blocks, tokens, seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.request import Request, RequestState

__all__ = ["BlockHolder", "Explanation", "SchedulerView", "WaitReason", "explain"]

_MOST_HOLDERS = 5


class WaitReason(StrEnum):
    """What keeps a request from computing in the next step."""

    NOTHING = "nothing"
    PLACES = "places"
    BLOCKS = "blocks"
    FENCE = "fence"
    BUDGET = "budget"
    PREFIX = "prefix"
    TRANSIT = "transit"
    """Its blocks are on their way from the group that it has left."""
    BEHIND_PARKED = "behind_parked"
    BEHIND_OTHERS = "behind_others"
    GROUP = "group"
    """No group has it: it is on its way to one, or waits for one to come up."""
    ROOM = "room"
    """Every group is full: it waits for the first that has room."""


@dataclass(frozen=True, slots=True)
class BlockHolder:
    """A running choice of a request and the blocks in its table."""

    request_id: str
    num_blocks: int
    choice: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """What an explanation reads. The sequences are the scheduler's own: look, do not touch.

    Attributes:
        step: newest step planned.
        running: most urgent first.
        queued: in the order of service.
        prefix_owners: ids: who waits for a prefix under way, and who computes it.
        max_running: places in the batch.
        num_available: blocks that can be had now.
        num_fenced: blocks that can be had once a step is acknowledged.
        watermark: blocks that an admission leaves free for others to grow into.
        rates: as measured now.
    """

    step: int
    running: Sequence[Request]
    queued: Sequence[Request]
    prefix_owners: Mapping[str, str]
    max_running: int
    num_available: int
    num_fenced: int
    watermark: int
    rates: CostModel


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer.

    Attributes:
        request_id: who was asked about.
        state: where it stands.
        reason: what it waits for.
        place: requests that come before it: those ahead in the queue; for one that runs, those
            more urgent.
        blocks_short: blocks missing before it can go on; 0 when blocks are not what it lacks.
        holders: who holds the most blocks, largest first; empty when blocks are not what it lacks.
        estimate_seconds: until its next token at the latest, if nobody more urgent comes; None when
            the rates are not measured yet.
        behind: the one request it waits for, when there is one: whose prefix it needs, or the next
            to come back; empty otherwise.
        choice: which of the request's answers it makes.
        begins: choices that have not begun, and will with what it has when it samples next.
    """

    request_id: str
    state: RequestState
    reason: WaitReason
    place: int
    blocks_short: int = 0
    holders: tuple[BlockHolder, ...] = ()
    estimate_seconds: float | None = None
    behind: str = ""
    choice: int = 0
    begins: tuple[int, ...] = ()


def explain(view: SchedulerView, request: Request) -> Explanation:
    """What one choice of a request that is served waits for."""
    if request.state is RequestState.RUNNING:
        return _explain_running(view, request)
    if request.expects:
        return _answer(view, request, WaitReason.TRANSIT, 0)
    owner = view.prefix_owners.get(request.request_id)
    if owner is not None:
        return _answer(view, request, WaitReason.PREFIX, 0, behind=owner)
    return _explain_queued(view, request)


def _explain_running(view: SchedulerView, request: Request) -> Explanation:
    place = next(i for i, other in enumerate(view.running) if other is request)
    if request.num_promised or (request.handle is not None and request.last_step == view.step):
        return _answer(view, request, WaitReason.NOTHING, place)
    pending = request.num_computed + 1
    short = request.table.blocks_short(pending)
    if not short:
        return _answer(view, request, WaitReason.BUDGET, place)
    return _short(view, request, place, max(1, short - view.num_available), short)


def _explain_queued(view: SchedulerView, request: Request) -> Explanation:
    place = next(i for i, other in enumerate(view.queued) if other is request)
    ahead = view.queued[:place]
    parked = next((other for other in ahead if other.state is RequestState.PARKED), None)
    if parked is not None:
        reason = WaitReason.BEHIND_PARKED
        return _answer(view, request, reason, place, behind=parked.request_id)
    needed = _blocks_to_start(view, request)
    short = needed - view.num_available
    if short > 0:
        return _short(view, request, place, short, needed)
    if len(view.running) >= view.max_running:
        return _answer(view, request, WaitReason.PLACES, place)
    reason = WaitReason.BEHIND_OTHERS if ahead else WaitReason.BUDGET
    return _answer(view, request, reason, place)


def _short(
    view: SchedulerView, request: Request, place: int, short: int, needed: int
) -> Explanation:
    """Blocks are what it lacks; they may come by themselves, once a fence opens."""
    reason = WaitReason.FENCE if short <= view.num_fenced else WaitReason.BLOCKS
    by_size = sorted(view.running, key=lambda other: -len(other.table.block_ids))
    holders = tuple(
        BlockHolder(other.request_id, len(other.table.block_ids), other.choice)
        for other in by_size[:_MOST_HOLDERS]
        if other is not request and other.table.block_ids
    )
    return _answer(view, request, reason, place, short, holders, needed=needed)


def _answer(
    view: SchedulerView,
    request: Request,
    reason: WaitReason,
    place: int,
    short: int = 0,
    holders: tuple[BlockHolder, ...] = (),
    *,
    needed: int = 0,
    behind: str = "",
) -> Explanation:
    return Explanation(
        request_id=request.request_id,
        state=request.state,
        reason=reason,
        place=place,
        blocks_short=short,
        holders=holders,
        estimate_seconds=_estimate(view, request, place, needed),
        behind=behind,
        choice=request.choice,
        begins=tuple(request.pending_forks),
    )


def _blocks_to_start(view: SchedulerView, request: Request) -> int:
    """Blocks that must be free before a request that waits is admitted."""
    held = view.watermark if view.running else 0
    return request.table.blocks_short(len(request.tokens)) - len(request.path) + held


def _estimate(view: SchedulerView, request: Request, place: int, needed: int) -> float | None:
    """Seconds until the request's next token at the latest; None without rates."""
    rates = view.rates
    if not rates.prefill_tokens_per_second or not rates.step_seconds:
        return None
    waits = request.state is not RequestState.RUNNING
    ahead = view.queued[:place] if waits else ()
    prefills = [other for other in (*view.running, *ahead, request) if other.num_pending > 1]
    compute = rates.recompute_seconds(sum(other.num_pending for other in prefills))
    blocks = needed + sum(_blocks_to_start(view, other) - view.watermark for other in ahead)
    steps = _steps_until(view, request, blocks, len(ahead) + 1 if waits else 0)
    return compute + (steps + 1) * rates.step_seconds


def _steps_until(view: SchedulerView, request: Request, blocks: int, places: int) -> float:
    """Steps until so many blocks and places are free, if all who run go on to their max_tokens.

    Those who run grow meanwhile, which takes from what is free. When all of them have ended and it
    is still not enough, for those ahead fill the pool more than once, they are taken to need it
    for as long as those who run, one poolful after the other.
    """
    others = [other for other in view.running if other is not request]
    available = view.num_available + view.num_fenced
    free_places = view.max_running - len(view.running)
    left = np.array([other.max_tokens - other.num_output for other in others], dtype=np.int64)
    length = np.array([len(other.tokens) for other in others], dtype=np.int64)
    held = np.array([len(other.table.block_ids) for other in others], dtype=np.int64)
    size = request.table.block_size
    for steps in (0, *sorted(set(left.tolist()))):
        ended = left <= steps
        grown = np.maximum(0, -(-(length + steps) // size) - held)
        free = available + int(held[ended].sum()) - (int(grown[~ended].sum()) if steps else 0)
        if free >= blocks and free_places + int(ended.sum()) >= places:
            return float(steps)
    everything = max(1, available + int(held.sum()))
    rounds = max(blocks / everything, places / view.max_running) - 1.0
    last, usual = (float(left.max()), float(left.mean())) if others else (0.0, 0.0)
    return last + max(0.0, rounds) * usual
