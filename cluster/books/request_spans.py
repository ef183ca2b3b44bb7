"""Spans of requests in one engine: the wait for a place, the prompt, the answer.

An engine listener. A request's times come with the last update of its first answer, so nothing is
done for a token but to see whether its answer has ended. A request that is preempted stays one
span; one that goes on at another engine has another span there, below the same parent. Units:
seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.cluster.tracing import Span, Tracer
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.snapshot import RequestSnapshot

__all__ = ["RequestSpans"]


@dataclass(slots=True)
class _Followed:
    span: Span
    choices: set[int]


class RequestSpans:
    """Implements `EngineListener`. Follows the requests that came with a `traceparent`."""

    def __init__(self, tracer: Tracer, group_id: str) -> None:
        self._tracer = tracer
        self._group_id = group_id
        self._followed: dict[str, _Followed] = {}

    def submitted(self, spec: RequestSpec) -> None:
        """See `EngineListener`."""
        self._follow(spec, set(range(spec.num_choices)), resumed=False)

    def resumed(self, snapshot: RequestSnapshot) -> None:
        """See `EngineListener`."""
        self._follow(snapshot.spec, set(snapshot.numbers), resumed=True)

    def stepped(self, updates: Sequence[RequestUpdate]) -> None:
        """See `EngineListener`."""
        for update in updates:
            if update.finish_reason is not None:
                self._ended(update)

    def aborted(self, request_id: str, choice: int | None) -> None:
        """See `EngineListener`."""
        followed = self._followed.get(request_id)
        if followed is None:
            return
        followed.choices -= {choice} if choice is not None else followed.choices.copy()
        self._end_if_over(request_id, followed)

    def close(self) -> None:
        """The engine ends; what it still ran has not come to its end here."""
        for followed in self._followed.values():
            followed.span.end("the engine ended before the request")
        self._followed.clear()

    def _follow(self, spec: RequestSpec, choices: set[int], resumed: bool) -> None:
        if not spec.traceparent:
            return
        span = self._tracer.begin("engine", spec.traceparent)
        span.set(
            request_id=spec.request_id,
            group=self._group_id,
            prompt_tokens=len(spec.prompt_token_ids),
            resumed=resumed,
        )
        self._followed[spec.request_id] = _Followed(span, choices)

    def _ended(self, update: RequestUpdate) -> None:
        followed = self._followed.get(update.request_id)
        if followed is None:
            return
        times = update.timings
        if times is not None and update.choice == min(followed.choices, default=0):
            prompt_at = times.queue_seconds
            answer_at = prompt_at + times.prefill_seconds
            followed.span.part("queue", 0.0, prompt_at)
            followed.span.part("prefill", prompt_at, answer_at)
            followed.span.part("decode", answer_at, answer_at + times.decode_seconds)
            followed.span.set(
                cached_tokens=update.cached_tokens,
                preemptions=times.preemptions,
                outcome=str(update.finish_reason),
            )
        followed.choices.discard(update.choice)
        self._end_if_over(update.request_id, followed)

    def _end_if_over(self, request_id: str, followed: _Followed) -> None:
        if not followed.choices:
            followed.span.end()
            del self._followed[request_id]
