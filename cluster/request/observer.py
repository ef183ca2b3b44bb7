"""What operators learn of each request at an ingress: one log line, and the root of its spans.

The line has the request's id, its outcome, counts and times. What people wrote and what they were
answered is in neither; prompts are logged beside it only when that was asked for. Knows no
transport. Units: tokens, seconds.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.json_format import MessageToDict

from blockyard.cluster.logs import fields
from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.caller import Caller
from blockyard.cluster.tracing import NO_TRACER, Span, Tracer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import RequestSpec

__all__ = ["ObservedRequest", "RequestObserver"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ObservedRequest:
    """One request on its way."""

    span: Span
    told: dict[str, Any] = field(default_factory=dict)
    answer_tokens: int = 0
    outcome: str = ""

    def admitted(self, spec: RequestSpec, model: str) -> RequestSpec:
        """It is whole and allowed; the request as it goes on, with its place among the spans."""
        self.told |= {
            "request_id": spec.request_id,
            "tenant": spec.tenant or None,
            "model": model,
            "adapter": spec.extras.adapter_id or None,
            "prompt_tokens": len(spec.prompt_token_ids),
        }
        self.span.set(**{name: value for name, value in self.told.items() if value is not None})
        traceparent = self.span.traceparent
        return replace(spec, traceparent=traceparent) if traceparent else spec

    def note(self, chunk: pb.GenerateChunk) -> None:
        """A piece of an answer is on its way to the client; only last ones tell something new."""
        if not chunk.finish_reason:
            return
        self.outcome = (
            pb.FinishReason.Name(chunk.finish_reason).removeprefix("FINISH_REASON_").lower()
        )
        self.answer_tokens += chunk.usage.completion_tokens
        if chunk.choice == 0:
            times = chunk.timings
            self.told |= {
                "cached_tokens": chunk.usage.cached_tokens,
                "queue_seconds": _rounded(times.queue_seconds) if times.queue_seconds else None,
                "first_token_seconds": _rounded(times.first_token_seconds),
                "preemptions": times.preemptions,
            }


class RequestObserver:
    """Watches the requests of one ingress.

    Args:
        tracer: begins their spans.
        log_prompts: whether prompts are logged.
        clock: seconds.
    """

    def __init__(
        self,
        tracer: Tracer = NO_TRACER,
        log_prompts: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracer = tracer
        self._log_prompts = log_prompts
        self._clock = clock

    @contextmanager
    def request(self, asked: pb.GenerateRequest, caller: Caller) -> Iterator[ObservedRequest]:
        """A request from its arrival to its end, however it ends. Raises what its body raises."""
        began = self._clock()
        observed = ObservedRequest(self._tracer.begin("request", caller.traceparent))
        told = observed.told
        try:
            yield observed
        except ApiError as error:
            observed.outcome = error.code.name.lower()
            told |= {"field": error.field or None, "incident": error.incident or None}
            raise
        except (GeneratorExit, asyncio.CancelledError):
            observed.outcome = "left"
            raise
        finally:
            told |= {"answer_tokens": observed.answer_tokens, "outcome": observed.outcome or "left"}
            observed.span.set(outcome=told["outcome"], answer_tokens=observed.answer_tokens)
            observed.span.end(observed.outcome if observed.outcome in _FAILURES else "")
            seconds = _rounded(self._clock() - began)
            trace = observed.span.traceparent.split("-")[1:2]
            if self._log_prompts:
                told["prompt"] = _prompt(asked)
            logger.info(
                "request ended",
                extra=fields(**told, seconds=seconds, trace_id=trace[0] if trace else None),
            )


_FAILURES = frozenset({"internal", "unavailable", "abort"})
"""Outcomes that are the server's own; refusals are not."""


def _prompt(asked: pb.GenerateRequest) -> Any:
    kind = asked.WhichOneof("input")
    told = MessageToDict(asked, preserving_proto_field_name=True)
    return told.get(kind) if kind else None


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
