"""Prometheus metrics of contiguous servers that are modelled beside a group's pool.

Values are read from a `PolicyReport` when somebody asks. Units: as each says.
"""

from blockyard.cluster.books.metric_kinds import POLICY, MetricSpec, Samples, one, states
from blockyard.scheduler.contiguous.shadow_report import PolicyReport

__all__ = ["SHADOW_METRICS"]


def _requests(policy: PolicyReport) -> Samples:
    yield ("running",), policy.books.running
    yield ("queued",), policy.queued


SHADOW_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "blockyard_contiguous_requests", "requests",
        "Live requests that it would run (`running`), and the others (`queued`).",
        (*POLICY, "state"), _requests,
    ),
    MetricSpec(
        "blockyard_contiguous_peak_requests", "requests", "Most that it would have run at once.",
        POLICY, one(lambda p: p.peak_running),
    ),
    MetricSpec(
        "blockyard_contiguous_delayed_total", "requests",
        "Requests that could not have started at once.",
        POLICY, one(lambda p: p.delayed),
    ),
    MetricSpec(
        "blockyard_contiguous_refused_total", "requests",
        "Requests that ended here before it had room for them.",
        POLICY, one(lambda p: p.never_started),
    ),
    MetricSpec(
        "blockyard_contiguous_evicted_total", "requests",
        "Requests whose piece was full while no larger one was free.",
        POLICY, one(lambda p: p.evictions),
    ),
    MetricSpec(
        "blockyard_contiguous_slots", "slots",
        "Its token slots: `filled`, `reservation`, `internal`, `free`; they add up to its memory.",
        (*POLICY, "state"),
        lambda p: states(p.books, ("filled", "reservation", "internal", "free")),
    ),
    MetricSpec(
        "blockyard_contiguous_largest_hole_slots", "slots", "Its largest piece of free slots.",
        POLICY, one(lambda p: p.books.largest_hole),
    ),
    MetricSpec(
        "blockyard_contiguous_fragmentation_ratio", "share", "1 - largest hole / free slots.",
        POLICY, one(lambda p: p.books.external_fragmentation),
    ),
    MetricSpec(
        "blockyard_contiguous_filled_ratio", "share",
        "Share of its given-out slots that hold tokens.",
        POLICY, one(lambda p: p.books.filled_ratio),
    ),
    MetricSpec(
        "blockyard_contiguous_pool_filled_ratio", "share",
        "Share of all its slots that hold tokens.",
        POLICY, one(lambda p: p.books.pool_filled_ratio),
    ),
)  # fmt: skip
