"""Counts of requests as their clients saw them: outcomes, times to tokens, tokens.

Kept by an ingress, at the seam between the APIs and the engines, so each request counts once,
whatever becomes of it behind that seam: one that is preempted or goes on at another group still has
one first token. Knows no transport. Units: seconds, tokens.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from blockyard.cluster.dispatch import TokenStream
from blockyard.scheduler.request import RequestRefused, RequestSpec, RequestUpdate

__all__ = ["REQUEST_METRICS", "MeteredStream", "RequestMeter", "RequestMetric"]

_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
_MODEL = ("model",)


@dataclass(frozen=True, slots=True)
class RequestMetric:
    """One of these metrics; with `buckets`, upper bounds in seconds, it is a histogram."""

    name: str
    unit: str
    help: str
    labels: tuple[str, ...] = _MODEL
    buckets: tuple[float, ...] = ()


REQUEST_METRICS = (
    RequestMetric(
        "blockyard_requests_ended_total", "requests",
        "Requests by outcome: how the last of their answers ended (`stop`, `length`, `abort`, "
        "`error`, `deadline`), `left` when the client left or a stop text was found, or the code "
        "of a refusal (`invalid`, `exists`, `exhausted`, `unavailable`).",
        ("model", "outcome"),
    ),
    RequestMetric(
        "blockyard_request_tokens_total", "tokens",
        "Tokens of prompts (`prompt`), those of them that were found in memory (`cached`), and of "
        "answers (`answer`).",
        ("model", "kind"),
    ),
    RequestMetric(
        "blockyard_request_preemptions_total", "preemptions",
        "How often requests that have ended had lost their place.",
    ),
    RequestMetric(
        "blockyard_first_token_seconds", "seconds",
        "From a request's arrival to its first token.", buckets=_LONG,
    ),
    RequestMetric(
        "blockyard_inter_token_seconds", "seconds",
        "Between tokens of an answer; tokens that came together share the time.", buckets=_SHORT,
    ),
    RequestMetric(
        "blockyard_queue_seconds", "seconds",
        "From a request's arrival to its first step, at the central scheduler and in its group's "
        "queue.",
        buckets=_LONG,
    ),
    RequestMetric(
        "blockyard_request_seconds", "seconds",
        "From a request's arrival to its end.", buckets=_LONG,
    ),
)  # fmt: skip


class RequestMeter(Collector):
    """All requests of one ingress. Registered with nobody: whoever is scraped asks for it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._registry = CollectorRegistry(auto_describe=False)

        made = {metric.name: self._make(metric) for metric in REQUEST_METRICS}
        self.requests: Counter = made["blockyard_requests_ended_total"]
        self.tokens: Counter = made["blockyard_request_tokens_total"]
        self.preemptions: Counter = made["blockyard_request_preemptions_total"]
        self.first_token: Histogram = made["blockyard_first_token_seconds"]
        self.inter_token: Histogram = made["blockyard_inter_token_seconds"]
        self.queue: Histogram = made["blockyard_queue_seconds"]
        self.total: Histogram = made["blockyard_request_seconds"]

    def _make(self, metric: RequestMetric) -> Any:
        told = (metric.name, metric.help, metric.labels)
        if metric.buckets:
            return Histogram(*told, buckets=metric.buckets, registry=self._registry)
        return Counter(*told, registry=self._registry)

    def collect(self) -> Iterable[Metric]:
        """What has been counted so far."""
        return self._registry.collect()

    async def follow(
        self, model: str, spec: RequestSpec, submission: Awaitable[TokenStream]
    ) -> TokenStream:
        """The stream of a submission, counted as it is read. Raises what the submission raises."""
        arrived_at = self.clock()
        try:
            stream = await submission
        except RequestRefused as refusal:
            self.requests.labels(model, refusal.code.value).inc()
            raise
        self.tokens.labels(model, "prompt").inc(len(spec.prompt_token_ids))
        return MeteredStream(self, model, stream, arrived_at, self.clock() - arrived_at)


class MeteredStream:
    """A stream that is counted. Implements `dispatch.TokenStream`.

    `placed_seconds` after its arrival an engine had taken the request.
    """

    def __init__(
        self,
        meter: RequestMeter,
        model: str,
        stream: TokenStream,
        arrived_at: float,
        placed_seconds: float,
    ) -> None:
        self._meter = meter
        self._model = model
        self._stream = stream
        self._arrived_at = arrived_at
        self._placed_seconds = placed_seconds
        self._first_token_seconds = inf
        # When each answer's newest token came.
        self._newest: dict[int, float] = {}
        self._outcome = ""
        self._told = False

    async def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        """Iterate over the stream's updates. Raises what the stream raises."""
        try:
            async for update in self._stream:
                self._note(update)
                yield update
        except RequestRefused as refusal:
            self._end(refusal.code.value)
            raise
        if self._outcome:
            self._end(self._outcome)

    async def abort(self, choice: int | None = None) -> None:
        """As the stream's. A request that had not ended has been left."""
        if choice is None:
            self._end(self._outcome or "left")
        await self._stream.abort(choice)

    def _note(self, update: RequestUpdate) -> None:
        meter, model = self._meter, self._model
        if update.token_ids:
            self._note_tokens(update.choice, len(update.token_ids))
        if update.finish_reason is None:
            return
        self._outcome = update.finish_reason.value
        if update.choice == 0:
            meter.tokens.labels(model, "cached").inc(update.cached_tokens)
        if update.timings is not None:
            if update.choice == 0:
                # An engine counts from when it was given the request; one that went on with it from
                # the arrival here, and all that passed elsewhere is in that. No wait outlasts the
                # first token.
                waited = self._placed_seconds + update.timings.queue_seconds
                meter.queue.labels(model).observe(min(waited, self._first_token_seconds))
            meter.preemptions.labels(model).inc(update.timings.preemptions)

    def _note_tokens(self, choice: int, count: int) -> None:
        now, meter, model = self._meter.clock(), self._meter, self._model
        meter.tokens.labels(model, "answer").inc(count)
        if self._first_token_seconds == inf:
            self._first_token_seconds = now - self._arrived_at
            meter.first_token.labels(model).observe(self._first_token_seconds)
        before = self._newest.get(choice)
        self._newest[choice] = now
        if before is not None:
            gaps = meter.inter_token.labels(model)
            for _ in range(count):
                gaps.observe((now - before) / count)

    def _end(self, outcome: str) -> None:
        if self._told:
            return
        self._told = True
        self._meter.requests.labels(self._model, outcome).inc()
        self._meter.total.labels(self._model).observe(self._meter.clock() - self._arrived_at)
