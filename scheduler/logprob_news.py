"""Puts log probabilities into the news of a step, for those who want them.

Apart from the commit itself, because most steps have none. Prompts that are computed anew after a
preemption are scored anew by the workers; clients are told of each token once. Units: tokens.
"""

from collections.abc import Sequence

from blockyard.scheduler.plan import PromptLogprobs, StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, Request, RequestUpdate
from blockyard.scheduler.sampling import TokenLogprobs

__all__ = ["with_logprobs"]

Member = tuple[str, int]


def with_logprobs(
    updates: list[RequestUpdate],
    plan: StepPlan,
    members: Sequence[Request],
    children: Sequence[Member],
    result: StepResult,
) -> list[RequestUpdate]:
    """The updates of a step with what the workers tell of tokens.

    Args:
        updates: what the commit has made.
        plan: the step.
        members: who stands behind its rows.
        children: choices that it forks.
        result: what the workers answer.
    """
    sampled = [r.member for r, samples in zip(members, plan.samples, strict=True) if samples]
    sampled += children
    chosen = {
        member: logprobs
        for member, logprobs in zip(sampled, result.logprobs or (), strict=bool(result.logprobs))
        if logprobs is not None
    }
    prompts = _prompts(dict(zip(plan.handles, members, strict=True)), result)
    told: list[RequestUpdate] = []
    for update in updates:
        member = update.request_id, update.choice
        logprobs = chosen.get(member)
        if logprobs is not None and update.token_ids:
            update = update._replace(logprobs=(logprobs,))
        if member in prompts:
            update = update._replace(prompt_logprobs=prompts.pop(member))
        told.append(update)
    # A prompt whose end is not computed yet has no other news.
    told += [
        RequestUpdate(request_id, (), choice=choice, prompt_logprobs=entries)
        for (request_id, choice), entries in prompts.items()
    ]
    return told


def _prompts(
    rows: dict[int, Request], result: StepResult
) -> dict[Member, tuple[TokenLogprobs, ...]]:
    return {
        rows[scored.handle].member: entries
        for scored in result.prompt_logprobs
        if (entries := _untold(rows[scored.handle], scored))
    }


def _untold(request: Request, scored: PromptLogprobs) -> tuple[TokenLogprobs, ...]:
    """What of it is new, which is marked as told; nothing for one that was aborted."""
    others = request.handle is not None and request.handle != scored.handle
    if others or request.finish_reason is FinishReason.ABORT:
        return ()
    # The first token has no score: one that was told nothing yet waits for that of the second.
    begin = max(0, 1 + request.num_scored - scored.position)
    entries = scored.entries[begin:]
    request.num_scored += len(entries)
    return entries
