"""Prometheus metrics of the central scheduler's books: preemptions in the cluster, who waits.

Every ingress tells the same, so take the largest, not the sum. While the central scheduler does not
say there are none. Units: as each says.
"""

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
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
    MetricSpec(
        "blockyard_cluster_moved_requests_total", "requests",
        "Requests that came to any group from another where they had begun: `brought` with blocks, "
        "`recomputed` without.",
        ("kind",), lambda books: states(books.moves, ("brought", "recomputed")),
    ),
    MetricSpec(
        "blockyard_cluster_moved_bytes_total", "bytes",
        "KV blocks that came to any group from another, on all ranks.",
        (), one(lambda books: books.moves.bytes_in),
    ),
    MetricSpec(
        "blockyard_cluster_queued_requests", "requests",
        "Requests that wait for any group to have room, while all are full.",
        (), one(lambda books: books.waiting.queued),
    ),
    MetricSpec(
        "blockyard_cluster_queued_tokens", "tokens",
        "Tokens known of these.",
        (), one(lambda books: books.waiting.queued_tokens),
    ),
    MetricSpec(
        "blockyard_cluster_oldest_seconds", "seconds",
        "Since the one of them that waits longest came.",
        (), one(lambda books: books.waiting.oldest_seconds),
    ),
    MetricSpec(
        "blockyard_cluster_bound_total", "requests",
        "Requests that the central scheduler has given a group: `bound` all of them, `bound_late` "
        "those that had waited.",
        ("kind",), lambda books: states(books.waiting, ("bound", "bound_late")),
    ),
    MetricSpec(
        "blockyard_cluster_waited_seconds_total", "seconds",
        "How long those had waited, all together.",
        (), one(lambda books: books.waiting.waited_seconds),
    ),
    MetricSpec(
        "blockyard_cluster_refused_total", "requests",
        "Requests that it has refused: `shed` because too many waited, `too_late` because their "
        "deadline could not be met any more.",
        ("kind",), lambda books: states(books.waiting, ("shed", "too_late")),
    ),
)  # fmt: skip


class CentralMetrics(Collector):
    """One look at the books; registered for one scrape."""

    def __init__(self, books: CentralBooks | None) -> None:
        self._books = books

    def collect(self) -> Iterable[Metric]:
        """Every metric, or none."""
        for spec in CENTRAL_METRICS if self._books is not None else ():
            kind = CounterMetricFamily if spec.is_counter else GaugeMetricFamily
            family = kind(spec.name, spec.help, labels=spec.labels)
            for labels, value in spec.read(self._books):
                family.add_metric(labels, value)
            yield family
