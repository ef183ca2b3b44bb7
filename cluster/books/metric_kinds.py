"""What a Prometheus metric is told by: its name, unit, meaning, labels, and how it is read.

Values are read from a report when somebody asks; nothing is kept here. Units: in the names, and
in words for the documents.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from blockyard.cluster.books.step_meter import PartTimes

__all__ = [
    "GROUP",
    "POLICY",
    "RANK",
    "HistogramSpec",
    "MetricSpec",
    "Samples",
    "one",
    "ratio",
    "states",
]

GROUP = ("group",)
RANK = ("group", "rank")
POLICY = ("group", "policy")
"""Labels of the three scopes: a group's report, one rank of it, one contiguous server beside it."""

Samples = Iterator[tuple[tuple[str, ...], float]]
"""Values of a metric's labels behind those of its scope, and its value."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its name, its unit, its meaning, its labels, and how it is read.

    `read` takes the thing of the metric's scope: a group's report, a rank, or a policy. `help` and
    `unit` are what docs/metrics.md says; values of labels stand in it between backticks.
    """

    name: str
    unit: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Any], Samples]

    @property
    def is_counter(self) -> bool:
        """Whether it only grows while its group lives."""
        return self.name.endswith("_total")


@dataclass(frozen=True, slots=True)
class HistogramSpec:
    """One histogram of a group's report, in seconds; `read` answers values of labels and counts."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Any], Iterator[tuple[tuple[str, ...], PartTimes]]]
    unit: str = "seconds"


def states(counts: object, names: tuple[str, ...], each: float = 1) -> Samples:
    """A sample for each of some counts, named as they are, times `each`."""
    for name in names:
        yield (name,), getattr(counts, name) * each


def one(read: Callable[[Any], float]) -> Callable[[Any], Samples]:
    """A metric with no labels behind those of its scope."""

    def samples(subject: Any) -> Samples:
        yield (), read(subject)

    return samples


def ratio(part: float, whole: float) -> float:
    """A share; of nothing it is 0."""
    return part / whole if whole else 0.0
