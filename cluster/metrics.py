"""The books as Prometheus metrics, made from reports at the moment of a scrape.

Nothing is registered globally and nothing is kept between scrapes. What there is to tell is in
`metric_specs.py`.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from blockyard.cluster.books.central_message import ask_central
from blockyard.cluster.books.central_metrics import CentralMetrics
from blockyard.cluster.books.metric_kinds import MetricSpec
from blockyard.cluster.books.metric_specs import HISTOGRAMS, METRICS
from blockyard.cluster.books.rank_metrics import RankReport
from blockyard.cluster.books.step_meter import STEP_BUCKETS, PartTimes
from blockyard.cluster.dispatch import Dispatcher, GroupReport, Metered

__all__ = ["encode_reports", "scrape"]


async def scrape(dispatcher: Dispatcher, accept: str) -> tuple[bytes, str]:
    """All that there is to tell now, in the format that an `Accept` header asks for, and its name.

    The text is made in a thread.
    """
    reports = await dispatcher.reports(memory=True)
    meters = dispatcher.meters if isinstance(dispatcher, Metered) else ()
    more = (*meters, CentralMetrics(await ask_central(dispatcher)))
    return await asyncio.to_thread(encode_reports, reports, accept, more)


def encode_reports(
    reports: Sequence[GroupReport], accept: str, more: Sequence[Collector] = ()
) -> tuple[bytes, str]:
    """The metrics in the format that a scraper's `Accept` header asks for, and its name.

    `more` is what others count, beside the books.
    """
    registry = CollectorRegistry(auto_describe=False)
    for collector in (_Reports(reports), *more):
        registry.register(collector)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Reports(Collector):
    def __init__(self, reports: Sequence[GroupReport]) -> None:
        self._reports = reports

    def collect(self) -> Iterable[Metric]:
        for metric in METRICS:
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family: Any = kind(metric.name, metric.help, labels=metric.labels)
            for names, subject in _subjects(metric, self._reports):
                for values, number in metric.read(subject):
                    family.add_metric([*names, *values], number)
            yield family
        for spec in HISTOGRAMS:
            histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
            for report in self._reports:
                for labels, part in spec.read(report):
                    histogram.add_metric(
                        [report.group_id, *labels], _cumulative(part), part.seconds
                    )
            yield histogram


def _subjects(
    metric: MetricSpec, reports: Sequence[GroupReport]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for report in reports:
        group = report.group_id
        if metric.labels[1:2] == ("rank",):
            for rank in _ranks(report):
                yield (group, str(rank.facts.rank)), rank
        elif metric.labels[1:2] == ("policy",):
            for policy in report.books.shadow:
                yield (group, policy.books.policy), policy
        else:
            yield (group,), report


def _cumulative(part: PartTimes) -> list[tuple[str, float]]:
    """Counts up to each bound, as Prometheus has them."""
    bounds = [*map(floatToGoString, STEP_BUCKETS), "+Inf"]
    return [(bound, float(n)) for bound, n in zip(bounds, accumulate(part.counts), strict=True)]


def _ranks(report: GroupReport) -> Iterator[RankReport]:
    facts, allocators = report.books.facts, report.books.allocators
    for index, rank in enumerate(facts.ranks if facts is not None else ()):
        yield RankReport(
            report.ledger, rank, allocators[index] if index < len(allocators) else None
        )
