"""From samples of a server and figures given by hand to one measurement of plain values.

What was given by hand wins over what a server says. Units: tokens, requests, ratios from 0 to 1.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from blockyard.cluster.capacity.metrics_source import ServerLimits
from blockyard.cluster.capacity.server_metrics import ServerSample
from blockyard.scheduler.capacity.measurement import Load, measure_load

__all__ = ["GivenFigures", "answer_measurement", "mean_sample"]


@dataclass(frozen=True, slots=True)
class GivenFigures:
    """What was given on the command line; None: nothing."""

    capacity_tokens: int | None = None
    running: float | None = None
    mean_length: float | None = None
    limit: int | None = None
    p99_length: float | None = None


def mean_sample(samples: Sequence[ServerSample]) -> ServerSample:
    """Means over time; what a sample lacks is left out of its mean. Limits are the last ones."""

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    return replace(
        samples[-1],
        running=mean([sample.running for sample in samples]) or 0.0,
        waiting=mean([sample.waiting for sample in samples]),
        used_tokens=mean([sample.used_tokens for sample in samples]),
        held_tokens=mean([sample.held_tokens for sample in samples]),
    )


def answer_measurement(
    source: str,
    given: GivenFigures,
    samples: Sequence[ServerSample] = (),
    limits: ServerLimits | None = None,
) -> dict[str, Any]:
    """The whole answer, nested.

    Raises:
        ValueError: a figure is missing or contradicts another; the message names its option.
    """
    seen = mean_sample(samples) if samples else None
    load = _load(given, seen, limits or ServerLimits())
    found = measure_load(load)
    answer: dict[str, Any] = {
        "source": source,
        "samples": len(samples),
        "capacity_tokens": load.capacity_tokens,
        "running": load.running,
        "mean_length": load.mean_length,
        "max_seq_len": load.limit,
        "used_tokens": found.used_tokens,
        "utilisation": found.utilisation,
        "contiguous": asdict(found.contiguous),
        "blocks": {"concurrency": found.blocks_concurrency},
        "verdict": found.verdict.text,
        "findings": [finding.value for finding in found.verdict.findings],
    }
    if load.p99_length is not None:
        answer["p99_length"] = load.p99_length
    if load.waiting is not None:
        answer["waiting"] = load.waiting
    answer["assumptions"] = _notes(load, found.busy, seen, len(samples))
    return answer


def _load(given: GivenFigures, seen: ServerSample | None, limits: ServerLimits) -> Load:
    running, mean, used = given.running, given.mean_length, None
    capacity = given.capacity_tokens or limits.capacity_tokens
    limit, p99 = given.limit or limits.limit, given.p99_length
    if seen is not None:
        if running is None and seen.running == 0:
            raise ValueError(f"no request ran on {seen.server}; measure while it works")
        running = running if running is not None else seen.running
        if mean is None and seen.held_tokens is not None and seen.running:
            # Nothing holds less than a token, whatever the rounding of a gauge says.
            mean, used = max(seen.held_tokens / seen.running, 1.0), seen.used_tokens
        capacity = capacity or seen.capacity_tokens
        limit = limit or seen.limit
        p99 = p99 if p99 is not None else seen.p99_length
    missing = [
        option
        for option, value in (
            ("--capacity-tokens", capacity),
            ("--running", running),
            ("--mean-length", mean),
            ("--max-seq-len", limit),
        )
        if value is None
    ]
    if capacity is None or running is None or mean is None or limit is None:
        whom = "nothing tells" if seen is None else f"{seen.server} does not tell"
        raise ValueError(f"{whom} all that is needed; give {', '.join(missing)}")
    return Load(
        capacity_tokens=capacity,
        running=running,
        mean_length=mean,
        limit=limit,
        used_tokens=used if given.running is None else None,
        p99_length=min(p99, limit) if p99 is not None else None,
        waiting=seen.waiting if seen is not None else None,
    )


def _notes(load: Load, busy: bool, seen: ServerSample | None, num_samples: int) -> list[str]:
    notes: list[str] = []
    if seen is not None:
        notes.append(
            "means of one sample" if num_samples == 1 else f"means of {num_samples} samples"
        )
        notes += seen.notes
    if load.p99_length is None:
        notes.append("the p99 length is not known: give --p99-length for a surer verdict")
    elif seen is not None:
        notes.append("the p99 length is about: ends of histogram buckets, prompt plus answer")
    if not busy:
        notes.append(
            "the server was not full: low utilisation is partly low load, so measure at a peak too"
        )
    return notes
