"""What it costs to keep answers to JSON schemas: the same work with and without, in turns.

Each round asks for JSON under schemas, then for as many tokens without, request by request: the
same prompts up to their numbers, the same lengths, the same number in flight. Units: tokens.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from blockyard.cluster.benchmark.load_endpoint import Endpoint, Outcome
from blockyard.cluster.benchmark.load_requests import LoadRequest, of_json_tasks
from blockyard.cluster.benchmark.load_run import run_load
from blockyard.cluster.benchmark.load_summary import summarise_load

__all__ = ["StructuredFigures", "StructuredLoad", "is_valid", "measure_structured"]

_WARM_UP_REQUESTS = 32
"""All schemas once, so that no round pays for reading them first."""


@dataclass(frozen=True, slots=True)
class StructuredFigures:
    """What was measured.

    Attributes:
        requests, valid: structured ones sent, and answers that are JSON and that their schema
            describes.
        output_tokens_per_s: medians over rounds, `structured` and `plain`.
        overhead_ratio: part of the throughput that structure costs: the median over rounds of
            1 - structured / plain.
        rounds: how often each was measured.
    """

    requests: int
    valid: int
    output_tokens_per_s: dict[str, float]
    overhead_ratio: float
    rounds: int


@dataclass(frozen=True, slots=True)
class StructuredLoad:
    """How much to ask: so many requests in a round, so many in flight."""

    requests: int
    concurrency: int
    rounds: int
    timeout_seconds: float

    @property
    def total(self) -> int:
        """Requests of all rounds, with and without structure, and of the warm-up."""
        return _WARM_UP_REQUESTS + 2 * self.requests * self.rounds


async def measure_structured(
    endpoint: Endpoint, load: StructuredLoad, ended: Callable[[Outcome], None]
) -> tuple[StructuredFigures, tuple[Outcome, ...]]:
    """The figures, and the outcomes of all that was structured.

    Raises:
        RuntimeError: a request failed.
    """

    async def served(requests: tuple[LoadRequest, ...]) -> tuple[Outcome, ...]:
        outcomes = await run_load(endpoint, requests, load.concurrency, load.timeout_seconds, ended)
        failed = next((outcome for outcome in outcomes if outcome.error), None)
        if failed is not None:
            raise RuntimeError(f"a request failed: {failed.message}")
        return outcomes

    number = _WARM_UP_REQUESTS
    await served(of_json_tasks(number))
    structured: list[Outcome] = []
    speeds: dict[str, list[float]] = {"structured": [], "plain": []}
    for _ in range(load.rounds):
        outcomes = await served(of_json_tasks(load.requests, number))
        speeds["structured"].append(summarise_load(outcomes).output_tokens_per_s)
        # One after the other, as if they had been one load.
        began = max((outcome.ended for outcome in structured), default=0.0)
        structured.extend(outcome.later(began) for outcome in outcomes)
        number += load.requests
        # Other numbers, so that no prompt is found in a cache.
        asked = of_json_tasks(load.requests, number)
        number += load.requests
        plain = tuple(
            replace(request, schema="", max_tokens=max(1, outcome.output_tokens))
            for request, outcome in zip(asked, outcomes, strict=True)
        )
        speeds["plain"].append(summarise_load(await served(plain)).output_tokens_per_s)
    ratios = [a / b for a, b in zip(speeds["structured"], speeds["plain"], strict=True)]
    figures = StructuredFigures(
        requests=len(structured),
        valid=sum(map(is_valid, structured)),
        output_tokens_per_s={name: median(values) for name, values in speeds.items()},
        overhead_ratio=1.0 - median(ratios),
        rounds=load.rounds,
    )
    return figures, tuple(structured)


def is_valid(outcome: Outcome) -> bool:
    """Whether an answer is JSON that its schema describes."""
    if outcome.answer is None:
        return False
    try:
        value = json.loads(outcome.answer.text)
        Draft202012Validator(json.loads(outcome.request.schema)).validate(value)
    except (ValueError, ValidationError):
        return False
    return True
