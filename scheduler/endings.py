"""When a request ends, and what its client is told then. Pure: looks, changes nothing."""

from collections.abc import Iterable

from blockyard.scheduler.request import FinishReason, Request, RequestUpdate, Timings

__all__ = ["last_update", "reason_to_end", "with_weights"]


def reason_to_end(request: Request, token: int) -> FinishReason | None:
    """Why the token just appended is the last; None when it is not."""
    sampling = request.spec.sampling
    if token in sampling.stop_token_ids and request.num_output >= sampling.min_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(request.tokens) >= request.end_at else None


def last_update(
    request: Request, now: float, token_ids: tuple[int, ...], error: str = ""
) -> RequestUpdate:
    """The update that ends a request which took part in a step."""
    started_at = now if request.started_at is None else request.started_at
    first_token_at = now if request.first_token_at is None else request.first_token_at
    timings = Timings(
        started_at - request.arrived_at,
        first_token_at - started_at,
        now - first_token_at,
        request.num_preemptions,
    )
    return RequestUpdate(
        request.request_id,
        token_ids,
        request.finish_reason,
        error,
        request.cached_tokens,
        timings,
        request.choice,
    )


def with_weights(updates: Iterable[RequestUpdate], weights: tuple[str, ...]) -> list[RequestUpdate]:
    """The same, each that has tokens with what is told of the weights that made them."""
    return [
        update._replace(weights=weights) if update.token_ids and not update.weights else update
        for update in updates
    ]
