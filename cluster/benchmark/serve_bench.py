"""One `blockyard bench serve`: from what was asked for to a report. Units: tokens, seconds."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blockyard.cluster.benchmark.load_endpoint import Endpoint, Outcome, ServedModel
from blockyard.cluster.benchmark.load_requests import (
    LoadRequest,
    MadeUpLoad,
    at_poisson_times,
    fitting,
    of_trace,
    of_workload,
)
from blockyard.cluster.benchmark.load_run import run_load
from blockyard.cluster.benchmark.load_summary import Objective, summarise_load
from blockyard.cluster.benchmark.structured_load import StructuredLoad, measure_structured
from blockyard.cluster.benchmark.workloads import make_workload
from blockyard.cluster.capacity.trace_reader import read_trace

__all__ = ["ServeBench", "ServeQuestion", "measure_serve"]

_DEFAULT_CONCURRENCY = 16
_DEFAULT_VOCABULARY = 32_000
"""Token ids that nearly every model has, where a server does not tell its own number."""


@dataclass(frozen=True, slots=True)
class ServeQuestion:
    """What to measure.

    Attributes:
        model: its name; empty: the server's first.
        workload: a name of `workloads`, or a trace's file, or requests of one shape, or
            structured answers.
        trace_format: of a file; None: told by its first line.
        requests: at most so many; None: all there are.
        concurrency: a closed loop with so many in flight; None: as the workload says, or an open
            loop.
        rate: an open loop with so many a second, as chance has it.
        speed: of a trace's own times.
        objective: for goodput; None: there is none.
        timeout_seconds: a request that takes longer has failed.
    """

    workload: str | Path | MadeUpLoad | StructuredLoad
    model: str = ""
    trace_format: str | None = None
    requests: int | None = None
    concurrency: int | None = None
    rate: float | None = None
    speed: float = 1.0
    objective: Objective | None = None
    timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.rate is not None and self.concurrency is not None:
            raise ValueError(
                "give --concurrency for a closed loop or --rate for an open one, not both"
            )
        if (self.rate is not None and not self.rate > 0) or not self.speed > 0:
            raise ValueError("--rate and --speed must be above 0")


@dataclass(frozen=True, slots=True)
class ServeBench:
    """A load's report, which JSON can hold, and how each request fared."""

    report: dict[str, Any]
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class _Load:
    requests: tuple[LoadRequest, ...]
    concurrency: int | None
    skipped: int


async def measure_serve(
    endpoint: Endpoint,
    question: ServeQuestion,
    starts: Callable[[int], None],
    ended: Callable[[Outcome], None],
) -> ServeBench:
    """Load a server.

    Args:
        endpoint: where it is.
        question: what to measure.
        starts: told once how many requests there will be.
        ended: told of each as it ends.

    Raises:
        EndpointError: the server cannot be reached, or has no such model.
        TraceError, ValueError: there is no such workload, or nothing of it fits the model.
        RuntimeError: a structured request failed, so that there is nothing to compare.
    """
    model = await endpoint.model(question.model)
    report: dict[str, Any] = {"model": model.name}
    if isinstance(question.workload, StructuredLoad):
        structured = question.workload
        starts(structured.total)
        figures, outcomes = await measure_structured(endpoint, structured, ended)
        report |= {"loop": "closed", "concurrency": structured.concurrency, "rate": None}
        report |= {"skipped": 0, "structured": asdict(figures)}
    else:
        load = _load(question, question.workload, model)
        starts(len(load.requests))
        outcomes = await run_load(
            endpoint, load.requests, load.concurrency, question.timeout_seconds, ended
        )
        loop = "open" if load.concurrency is None else "closed"
        report |= {"loop": loop, "concurrency": load.concurrency, "rate": question.rate}
        report |= {"skipped": load.skipped, "structured": None}
    summary = summarise_load(outcomes, question.objective)
    return ServeBench(report | asdict(summary), outcomes)


def _load(question: ServeQuestion, what: str | Path | MadeUpLoad, model: ServedModel) -> _Load:
    vocabulary = model.vocab_size or _DEFAULT_VOCABULARY
    usual: int | None = _DEFAULT_CONCURRENCY
    if isinstance(what, MadeUpLoad):
        requests = what.of(vocabulary)
    elif isinstance(what, Path):
        recorded = read_trace(what, question.trace_format)[: question.requests]
        requests = of_trace(recorded, vocabulary, question.speed)
        usual = None
    else:
        workload = make_workload(what, vocabulary)
        requests, usual = of_workload(workload, vocabulary), workload.concurrency
    requests = requests[: question.requests]
    fit = fitting(requests, model.context_tokens) if model.context_tokens else requests
    if not fit:
        raise ValueError(
            f"none of {len(requests)} requests fits the {model.context_tokens} tokens of "
            f"{model.name}"
        )
    if question.rate is not None:
        fit, usual = at_poisson_times(fit, question.rate), None
    return _Load(fit, question.concurrency or usual, len(requests) - len(fit))
