"""Books what a step has computed, and tells what is new.

Order: each row's slots are filled, its full blocks published, its children made; then its token
is appended, which may end it. Children share whatever their parent has by then. Units: tokens.
"""

from collections.abc import Mapping

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.draft import PlanDraft
from blockyard.scheduler.endings import last_update, reason_to_end
from blockyard.scheduler.logprob_news import with_logprobs
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, Request, RequestUpdate
from blockyard.scheduler.roster import Roster

__all__ = ["commit_step"]


def commit_step(
    batch: Batch,
    roster: Roster,
    plan: StepPlan,
    draft: PlanDraft,
    result: StepResult,
    now: float,
) -> list[RequestUpdate]:
    """Book the result of the step in flight; what is new, rows in plan order, then forks.

    Args:
        batch: places and blocks.
        roster: everybody served.
        plan: the step.
        draft: who stands behind its rows.
        result: what the workers answer, one token for each sample.
        now: seconds.
    """
    errors = {error.handle: error.message for error in result.errors}
    sampled = iter(result.token_ids)
    updates: list[RequestUpdate] = []
    made: dict[int, Request] = {}
    new = tuple.__new__  # a named tuple's own constructor takes twice the time
    fulfilled = 0
    rows = zip(draft.rows, plan.handles, plan.counts, plan.samples, strict=True)
    for request, handle, count, samples in rows:
        if request.handle != handle:
            if samples:
                next(sampled)
            # Aborted meanwhile, or ended by the step before, when this one was planned already:
            # its slots are off the books.
            continue
        request.num_promised -= count
        request.num_computed = computed = request.num_computed + count
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
        token = next(sampled)
        if errors or request.first_token_at is None:
            updates.append(_append(roster, request, handle, token, errors, now))
            continue
        # The usual row, as `_append` would do it: this is on the path of every token.
        tokens = request.tokens
        tokens.append(token)
        if len(tokens) < request.end_at and token not in request.sampling.stop_token_ids:
            news = (request.request_id, (token,), None, "", 0, None, request.choice, (), ())
            updates.append(new(RequestUpdate, news))
        else:
            updates.append(_told(roster, request, token, now))
    for (_, _, handle), token in zip(draft.children, sampled, strict=True):
        if handle in made:  # else it, or its parent, was aborted meanwhile
            updates.append(_append(roster, made[handle], handle, token, errors, now))
    for fork in plan.forks:
        batch.notices.end_awaiting(fork.parent)
    batch.holdings.fulfil(fulfilled)
    parking, num_copies = batch.parking, len(plan.swap_outs) + len(plan.swap_ins)
    parking.note_copies(num_copies, result.copy_seconds)
    decodes, recomputed = draft.num_decodes, draft.num_recomputed
    parking.note_step(draft.num_tokens - decodes, decodes, recomputed, result.compute_seconds)
    if result.logprobs or result.prompt_logprobs:
        return with_logprobs(updates, plan, draft, result)
    return updates


def _append(
    roster: Roster,
    request: Request,
    handle: int,
    token: int,
    errors: Mapping[int, str],
    now: float,
) -> RequestUpdate:
    """Append a sampled token, or end the member that could not be sampled."""
    if handle in errors:
        roster.end(request, FinishReason.ERROR)
        return last_update(request, now, (), errors[handle])
    request.tokens.append(token)
    if request.first_token_at is None:
        request.first_token_at = now
    return _told(roster, request, token, now)


def _told(roster: Roster, request: Request, token: int, now: float) -> RequestUpdate:
    """What the client is told of the token just appended, which may be the last."""
    reason = reason_to_end(request, token)
    if reason is None:
        return RequestUpdate(request.request_id, (token,), choice=request.choice)
    roster.end(request, reason)
    return last_update(request, now, (token,))
