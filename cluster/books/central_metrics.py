"""Prometheus metrics of the central scheduler's books: preemptions in the whole cluster.

Every ingress tells the same, so take the largest, not the sum. While the central scheduler does not
say there are none. Units: as each says.
"""

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from blockyard.cluster.books.central_books import CentralBooks
from blockyard.cluster.books.metric_kinds import MetricSpec, one, states

__all__ = ["CENTRAL_METRICS", "CentralMetrics"]

_WAYS = ("swapped", "recomputed", "moved")

CENTRAL_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "blockyard_cluster_preempted_total", "preemptions",
        "Preemptions of all groups, those that have gone included: `swapped`, `recomputed`, "
        "`held`, `moved`.",
        ("kind",), lambda books: states(books.preempted, (*_WAYS[:2], "held", "moved")),
    ),
    MetricSpec(
        "blockyard_cluster_decisions_total", "decisions",
        "How often the central scheduler has chosen who gives way to a more urgent request while "
        "every group was full.",
        (), one(lambda books: books.decisions),
    ),
    MetricSpec(
        "blockyard_cluster_victims_total", "requests",
        "Requests that it has chosen, by what was to become of them: `swapped`, `recomputed`, "
        "`moved`.",
        ("kind",), lambda books: states(books, _WAYS),
    ),
    MetricSpec(
        "blockyard_cluster_relieved_total", "requests",
        "Requests that went from one group's queue to another group.",
        (), one(lambda books: books.relieved),
    ),
)  # fmt: skip


class CentralMetrics(Collector):
    """One look at the books; registered for one scrape."""

    def __init__(self, books: CentralBooks | None) -> None:
        self._books = books

    def collect(self) -> Iterable[Metric]:
        """Every metric, or none."""
        for spec in CENTRAL_METRICS if self._books is not None else ():
            family = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
            for labels, value in spec.read(self._books):
                family.add_metric(labels, value)
            yield family
