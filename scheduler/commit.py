"""Books what a step has computed, and tells what is new.

Order: each row's slots are filled, its full blocks published, its children made; then its token
is appended, which may end it. Children share whatever their parent has by then. Units: tokens.
"""

from collections.abc import Mapping
from itertools import chain, repeat

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.draft import PlanDraft
from blockyard.scheduler.endings import last_update, reason_to_end
from blockyard.scheduler.logprob_news import with_logprobs
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, Request, RequestUpdate
from blockyard.scheduler.roster import Roster
from blockyard.scheduler.stride import Stride

__all__ = ["commit_step"]


def commit_step(
    batch: Batch,
    roster: Roster,
    plan: StepPlan,
    draft: PlanDraft,
    result: StepResult,
    now: float,
    weights: tuple[str, ...] = (),
) -> list[RequestUpdate]:
    """Book the result of the step in flight; what is new, rows in plan order, then forks.

    Args:
        batch: places and blocks.
        roster: everybody served.
        plan: the step.
        draft: who stands behind its rows.
        result: what the workers answer, one token for each sample.
        now: seconds.
        weights: what is told of the weights that made the tokens of those in lockstep; whoever
            calls adds it for others.
    """
    errors = {error.handle: error.message for error in result.errors}
    if errors:
        for request in batch.running:
            batch.fall_out(request)
    scored = result.logprobs or result.prompt_logprobs
    members = draft.members() if scored else ()
    updates: list[RequestUpdate] = []
    apart: list[tuple[Request, int, int]] = []
    num_led = draft.num_led
    if draft.stride is not None:
        led = result.token_ids[:num_led]
        apart = draft.stride.rows_apart(led)
        updates = _commit_lockstep(batch, roster, draft.stride, led, now, weights)
    fulfilled = len(updates)
    sampled = iter((*(token for _, _, token in apart), *result.token_ids[num_led:]))
    made: dict[int, Request] = {}
    rows = chain(
        ((request, handle, 1, True) for request, handle, _ in apart),
        zip(
            draft.rows,
            plan.handles[num_led:],
            plan.counts[num_led:],
            plan.samples[num_led:],
            strict=True,
        ),
    )
    for request, handle, count, samples in rows:
        if request.handle != handle:
            if samples:
                next(sampled)
            # Aborted meanwhile, or ended by the step before, when this one was planned already:
            # its slots are off the books.
            continue
        computed = request.settle(count)
        fulfilled += count
        # What a step computed that failed is not to be found by others.
        if computed >= request.publish_at and not (errors and handle in errors):
            batch.publish(request)
        if not samples:
            continue
        if request.pending_forks:
            for parent, choice, child_handle in draft.children:
                # It may have been given up since the step was planned.
                if parent is request and choice in request.pending_forks:
                    made[child_handle] = roster.fork(parent, choice, child_handle)
            if request.forgone:
                next(sampled)
                roster.retire(request)
                continue
        updates.append(_append(roster, request, handle, next(sampled), errors, now))
    for (_, _, handle), token in zip(draft.children, sampled, strict=True):
        if handle in made:  # else it, or its parent, was aborted meanwhile
            updates.append(_append(roster, made[handle], handle, token, errors, now))
    for fork in plan.forks:
        batch.notices.end_awaiting(fork.parent)
    batch.holdings.fulfil(fulfilled)
    parking = batch.parking
    parking.note_copies(result.moved_blocks, result.copy_seconds)
    decodes, recomputed = draft.num_decodes, draft.num_recomputed
    parking.note_step(draft.num_tokens - decodes, decodes, recomputed, result.compute_seconds)
    if not scored:
        return updates
    children = [(parent.request_id, choice) for parent, choice, _ in draft.children]
    return with_logprobs(updates, plan, members, children, result)


def _commit_lockstep(
    batch: Batch,
    roster: Roster,
    stride: Stride,
    sampled: tuple[int, ...],
    now: float,
    weights: tuple[str, ...],
) -> list[RequestUpdate]:
    """Book the rows of those still in lockstep, and tell their tokens."""
    lockstep = batch.lockstep
    rows, token_ids, due = lockstep.commit(stride, sampled)
    # On the path of every token: made without running any Python for each.
    updates = list(
        map(
            tuple.__new__,
            repeat(RequestUpdate),
            zip(
                rows.names,
                zip(token_ids),
                repeat(None),
                repeat(""),
                repeat(0),
                repeat(None),
                rows.choices,
                repeat(()),
                repeat(()),
                repeat(weights),
            ),
        )
    )
    for request in due:
        if request.num_computed >= request.publish_at:
            batch.publish(request)
    stops = lockstep.stop_token_ids
    ended = {rows.place(r): r for r in due if len(r.tokens) >= r.end_at}
    if stops and not stops.keys().isdisjoint(token_ids):
        ended |= {p: rows.requests[p] for p, token in enumerate(token_ids) if token in stops}
    for place, request in sorted(ended.items()):
        updates[place] = _told(roster, request, token_ids[place], now)
    lockstep.watch_booking(due)
    return updates


def _append(
    roster: Roster,
    request: Request,
    handle: int,
    token: int,
    errors: Mapping[int, str],
    now: float,
) -> RequestUpdate:
    """Append a sampled token, or end the member that could not be sampled.

    Which token a beam goes on with its search will say.
    """
    if handle in errors:
        roster.end(request, FinishReason.ERROR)
        return last_update(request, now, (), errors[handle])
    if request.first_token_at is None:
        request.first_token_at = now
    if request.sampling.searches:
        request.held = True
        return RequestUpdate(request.request_id, (token,), choice=request.choice)
    request.tokens.append(token)
    return _told(roster, request, token, now)


def _told(roster: Roster, request: Request, token: int, now: float) -> RequestUpdate:
    """What the client is told of the token just appended, which may be the last."""
    reason = reason_to_end(request, token)
    if reason is None:
        return RequestUpdate(request.request_id, (token,), choice=request.choice)
    roster.end(request, reason)
    return last_update(request, now, (token,))
