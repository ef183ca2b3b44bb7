"""Every Prometheus metric, declared once: its name, meaning and labels, and how it is read.

docs/metrics.md lists the same. Nothing is kept here: values are read from a report when somebody
asks. Units: in the names.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from blockyard.cluster.dispatch import GroupReport
from blockyard.scheduler.contiguous.shadow_report import PolicyReport
from blockyard.scheduler.ledger import BlockCounts, GroupLedger
from blockyard.scheduler.rank_facts import RankFacts
from blockyard.workers.config import AllocatorMemory

__all__ = ["METRICS", "MetricSpec", "RankReport"]

Samples = Iterator[tuple[tuple[str, ...], float]]
"""Values of a metric's labels behind those of its scope, and its value."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its name, its meaning, what its labels are called, and how it is read.

    `read` takes the thing of the metric's scope: a group's report, a rank, or a policy.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Any], Samples]

    @property
    def is_counter(self) -> bool:
        """Whether it only grows while its group lives."""
        return self.name.endswith("_total")


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank of a group's report."""

    ledger: GroupLedger
    facts: RankFacts
    allocator: AllocatorMemory | None


def _states(counts: object, names: tuple[str, ...], each: float = 1) -> Samples:
    for name in names:
        yield (name,), getattr(counts, name) * each


def _one(read: Callable[[Any], float]) -> Callable[[Any], Samples]:
    def samples(subject: Any) -> Samples:
        yield (), read(subject)

    return samples


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _info(report: GroupReport) -> Samples:
    yield (report.model, report.device, report.dtype), 1


def _wastes(report: GroupReport) -> Samples:
    held = report.ledger.blocks.active * report.ledger.block_size
    yield ("reservation",), _ratio(report.ledger.slots.promised, held)
    yield ("internal",), _ratio(report.ledger.slots.empty_tail, held)
    yield ("external",), 0.0


def _swapped(report: GroupReport) -> Samples:
    yield ("out",), report.ledger.preempted.blocks_out
    yield ("in",), report.ledger.preempted.blocks_in


def _filled_ratio(report: GroupReport) -> float:
    ledger = report.ledger
    return _ratio(ledger.slots.filled, ledger.blocks.active * ledger.block_size)


def _pool_filled_ratio(report: GroupReport) -> float:
    ledger = report.ledger
    return _ratio(ledger.slots.filled, ledger.blocks.total * ledger.block_size)


def _sharing_ratio(report: GroupReport) -> float:
    filled = report.ledger.slots.filled
    return report.ledger.logical_tokens / filled if filled else 1.0


def _memory(rank: RankReport) -> Samples:
    yield ("weights",), rank.facts.weight_bytes
    yield ("activations",), rank.facts.activation_bytes
    yield ("cuda_graphs",), rank.facts.graph_bytes
    yield ("kv_blocks",), rank.ledger.blocks.total * rank.facts.block_bytes


def _allocator(rank: RankReport) -> Samples:
    if rank.allocator is not None:
        for state in ("reserved", "allocated", "slack", "free", "largest_free"):
            yield (state,), getattr(rank.allocator, f"{state}_bytes")


def _allocator_fragmentation(rank: RankReport) -> Samples:
    if rank.allocator is not None:
        yield (), rank.allocator.external_fragmentation


def _contiguous_requests(policy: PolicyReport) -> Samples:
    yield ("running",), policy.books.running
    yield ("queued",), policy.queued


_BLOCK_STATES = tuple(name for name in BlockCounts.__slots__ if name != "total")
_SLOT_STATES = ("filled", "promised", "empty_tail")
_GROUP = ("group",)
_RANK = ("group", "rank")
_POLICY = ("group", "policy")

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "blockyard_group_info", "A group that answers; always 1.",
        (*_GROUP, "model", "device", "dtype"), _info,
    ),
    MetricSpec(
        "blockyard_blocks", "KV blocks by state; the states add up to the pool.",
        (*_GROUP, "state"), lambda r: _states(r.ledger.blocks, _BLOCK_STATES),
    ),
    MetricSpec(
        "blockyard_host_blocks", "Blocks in host memory by state; they add up to that pool.",
        (*_GROUP, "state"), lambda r: _states(r.ledger.host_blocks, _BLOCK_STATES),
    ),
    MetricSpec(
        "blockyard_slots", "Token slots of active blocks by state.",
        (*_GROUP, "state"), lambda r: _states(r.ledger.slots, _SLOT_STATES),
    ),
    MetricSpec(
        "blockyard_requests", "Live requests by state.",
        (*_GROUP, "state"),
        lambda r: _states(r.ledger.requests, ("running", "waiting", "parked")),
    ),
    MetricSpec(
        "blockyard_waste_ratio", "The three wastes, as a share of the slots of active blocks.",
        (*_GROUP, "waste"), _wastes,
    ),
    MetricSpec(
        "blockyard_filled_ratio", "Share of the slots of active blocks that hold tokens.",
        _GROUP, _one(_filled_ratio),
    ),
    MetricSpec(
        "blockyard_pool_filled_ratio", "Share of all slots that hold tokens of live requests.",
        _GROUP, _one(_pool_filled_ratio),
    ),
    MetricSpec(
        "blockyard_held_tokens", "Computed tokens, counted for every request that holds them.",
        _GROUP, _one(lambda r: r.ledger.logical_tokens),
    ),
    MetricSpec(
        "blockyard_sharing_ratio", "Held tokens for each filled slot; above 1 by sharing.",
        _GROUP, _one(_sharing_ratio),
    ),
    MetricSpec(
        "blockyard_steps_total", "Forward passes.",
        _GROUP, _one(lambda r: r.ledger.step),
    ),
    MetricSpec(
        "blockyard_preemptions_total", "How often a running request had to give up its place.",
        _GROUP, _one(lambda r: r.ledger.preemptions),
    ),
    MetricSpec(
        "blockyard_preempted_total", "The same by what became of the blocks taken first.",
        (*_GROUP, "kind"),
        lambda r: _states(r.ledger.preempted, ("swapped", "recomputed", "held")),
    ),
    MetricSpec(
        "blockyard_swapped_blocks_total", "Blocks moved to host memory, and back.",
        (*_GROUP, "direction"), _swapped,
    ),
    MetricSpec(
        "blockyard_stalled_steps_total", "Plans that computed nothing while work waited.",
        _GROUP, _one(lambda r: r.ledger.stalled_steps),
    ),
    MetricSpec(
        "blockyard_prompt_tokens_total", "Tokens of requests when they were first admitted.",
        _GROUP, _one(lambda r: r.ledger.prompt_tokens),
    ),
    MetricSpec(
        "blockyard_prefix_hit_tokens_total", "Those of them found in the prefix index.",
        _GROUP, _one(lambda r: r.ledger.prefix_hit_tokens),
    ),
    MetricSpec(
        "blockyard_recomputed_tokens_total", "Tokens computed again after preemptions.",
        _GROUP, _one(lambda r: r.ledger.recomputed_tokens),
    ),
    MetricSpec(
        "blockyard_merged_blocks_total", "Blocks given up for an equal one.",
        _GROUP, _one(lambda r: r.ledger.merged_blocks),
    ),
    MetricSpec(
        "blockyard_block_bytes", "A rank's bytes of KV blocks by state.",
        (*_RANK, "state"),
        lambda r: _states(r.ledger.blocks, _BLOCK_STATES, r.facts.block_bytes),
    ),
    MetricSpec(
        "blockyard_host_block_bytes", "A rank's bytes of blocks in host memory by state.",
        (*_RANK, "state"),
        lambda r: _states(r.ledger.host_blocks, _BLOCK_STATES, r.facts.block_bytes),
    ),
    MetricSpec(
        "blockyard_slot_bytes", "A rank's bytes of the slots of active blocks by state.",
        (*_RANK, "state"),
        lambda r: _states(
            r.ledger.slots, _SLOT_STATES, r.facts.block_bytes / r.ledger.block_size
        ),
    ),
    MetricSpec(
        "blockyard_memory_bytes", "A rank's bytes by use; activations: the largest step's peak.",
        (*_RANK, "use"), _memory,
    ),
    MetricSpec(
        "blockyard_allocator_bytes", "Of a GPU's caching allocator; absent on a CPU.",
        (*_RANK, "state"), _allocator,
    ),
    MetricSpec(
        "blockyard_allocator_fragmentation_ratio",
        "1 - largest / total of what that allocator has free.",
        _RANK, _allocator_fragmentation,
    ),
    MetricSpec(
        "blockyard_contiguous_requests",
        "Live requests that a contiguous server with the same memory would run, and the others.",
        (*_POLICY, "state"), _contiguous_requests,
    ),
    MetricSpec(
        "blockyard_contiguous_peak_requests", "Most that it would have run at once.",
        _POLICY, _one(lambda p: p.peak_running),
    ),
    MetricSpec(
        "blockyard_contiguous_delayed_total", "Requests that could not have started at once.",
        _POLICY, _one(lambda p: p.delayed),
    ),
    MetricSpec(
        "blockyard_contiguous_refused_total", "Requests that ended here before it had room.",
        _POLICY, _one(lambda p: p.never_started),
    ),
    MetricSpec(
        "blockyard_contiguous_evicted_total", "Requests that could not have grown.",
        _POLICY, _one(lambda p: p.evictions),
    ),
    MetricSpec(
        "blockyard_contiguous_slots", "Its token slots by state.",
        (*_POLICY, "state"),
        lambda p: _states(p.books, ("filled", "reservation", "internal", "free")),
    ),
    MetricSpec(
        "blockyard_contiguous_largest_hole_slots", "Its largest piece of free slots.",
        _POLICY, _one(lambda p: p.books.largest_hole),
    ),
    MetricSpec(
        "blockyard_contiguous_fragmentation_ratio", "1 - largest hole / free slots.",
        _POLICY, _one(lambda p: p.books.external_fragmentation),
    ),
    MetricSpec(
        "blockyard_contiguous_filled_ratio", "Share of its given-out slots that hold tokens.",
        _POLICY, _one(lambda p: p.books.filled_ratio),
    ),
    MetricSpec(
        "blockyard_contiguous_pool_filled_ratio", "Share of all its slots that hold tokens.",
        _POLICY, _one(lambda p: p.books.pool_filled_ratio),
    ),
)  # fmt: skip
