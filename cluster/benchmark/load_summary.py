"""The figures of a load: throughput, waits, failures, and how much of it was good enough.

Quantiles above the number of samples are not given. Units: tokens, seconds; milliseconds where the
name says so.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blockyard.cluster.benchmark.load_endpoint import Outcome

__all__ = ["Goodput", "LoadFigures", "Objective", "quantiles_ms", "summarise_load"]

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request must meet to be good; None: any value will do.

    Attributes:
        ttft_ms: until its first token.
        itl_ms: on average between its tokens.
    """

    ttft_ms: float | None = None
    itl_ms: float | None = None

    def met_by(self, outcome: Outcome) -> bool:
        """Whether a request was answered, and soon enough."""
        first = outcome.first_token_seconds
        if outcome.error or first is None:
            return False
        if self.ttft_ms is not None and 1e3 * first > self.ttft_ms:
            return False
        gaps = outcome.gaps()
        return self.itl_ms is None or not gaps or 1e3 * sum(gaps) / len(gaps) <= self.itl_ms


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met an objective: a second, and of all that were sent."""

    requests_per_s: float
    ratio: float
    objective: Objective


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What was measured.

    Attributes:
        requests, completed: sent, and answered without failure.
        errors: how many failed, by kind.
        seconds: from the first request to the last end.
        output_tokens: of answers, those of failed requests included as far as they came.
        output_tokens_per_s, requests_per_s: of all requests together; only completed ones count
            as requests.
        ttft_ms: p50, p90 and p99 until a first token; in an open loop from when it was due.
        itl_ms: the same between tokens of one request.
        request_ms: the same for whole requests.
        goodput: None without an objective.
    """

    requests: int
    completed: int
    errors: dict[str, int]
    seconds: float
    output_tokens: int
    output_tokens_per_s: float
    requests_per_s: float
    ttft_ms: dict[str, float | None]
    itl_ms: dict[str, float | None]
    request_ms: dict[str, float | None]
    goodput: Goodput | None = None


def summarise_load(outcomes: Sequence[Outcome], objective: Objective | None = None) -> LoadFigures:
    """The figures of a load's requests."""
    completed = [outcome for outcome in outcomes if not outcome.error]
    seconds = max((outcome.ended for outcome in outcomes), default=0.0)
    output_tokens = sum(outcome.output_tokens for outcome in outcomes)
    firsts = [outcome.first_token_seconds for outcome in completed]
    good = sum(map(objective.met_by, outcomes)) if objective is not None else 0
    return LoadFigures(
        requests=len(outcomes),
        completed=len(completed),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
        seconds=seconds,
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / seconds if seconds else 0.0,
        requests_per_s=len(completed) / seconds if seconds else 0.0,
        ttft_ms=quantiles_ms(first for first in firsts if first is not None),
        itl_ms=quantiles_ms(gap for outcome in completed for gap in outcome.gaps()),
        request_ms=quantiles_ms(outcome.ended - outcome.due for outcome in completed),
        goodput=(
            Goodput(good / seconds if seconds else 0.0, good / len(outcomes), objective)
            if objective is not None and outcomes
            else None
        ),
    )


def quantiles_ms(seconds: Iterable[float]) -> dict[str, float | None]:
    """Median, 90th and 99th percentile in milliseconds; None where there are too few samples."""
    ordered = sorted(seconds)
    found: dict[str, float | None] = {}
    for name, part in _QUANTILES.items():
        rank = math.ceil(part * len(ordered))
        enough = len(ordered) * (1 - part) >= 1 - 1e-9 or (part == 0.5 and ordered)
        found[name] = 1e3 * ordered[rank - 1] if enough else None
    return found
