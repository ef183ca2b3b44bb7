"""Prometheus metrics of one rank: bytes of its blocks, of its memory, of its device's allocator.

Values are read from a `RankReport` when somebody asks. Units: bytes.
"""

from dataclasses import dataclass

from blockyard.cluster.books.metric_kinds import RANK, MetricSpec, Samples, states
from blockyard.scheduler.ledger import BlockCounts, GroupLedger
from blockyard.scheduler.rank_facts import RankFacts
from blockyard.workers.config import AllocatorMemory

__all__ = ["BLOCK_STATES", "RANK_METRICS", "SLOT_STATES", "RankReport"]

BLOCK_STATES = tuple(name for name in BlockCounts.__slots__ if name != "total")
SLOT_STATES = ("filled", "promised", "empty_tail")


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank of a group's report."""

    ledger: GroupLedger
    facts: RankFacts
    allocator: AllocatorMemory | None


def _memory(rank: RankReport) -> Samples:
    yield ("weights",), rank.facts.weight_bytes
    yield ("activations",), rank.facts.activation_bytes
    yield ("cuda_graphs",), rank.facts.graph_bytes
    yield ("kv_blocks",), rank.ledger.blocks.total * rank.facts.block_bytes


def _swapped_bytes(rank: RankReport) -> Samples:
    yield ("out",), rank.ledger.preempted.blocks_out * rank.facts.block_bytes
    yield ("in",), rank.ledger.preempted.blocks_in * rank.facts.block_bytes


def _allocator(rank: RankReport) -> Samples:
    if rank.allocator is not None:
        for state in ("reserved", "allocated", "slack", "free", "largest_free"):
            yield (state,), getattr(rank.allocator, f"{state}_bytes")


def _allocator_fragmentation(rank: RankReport) -> Samples:
    if rank.allocator is not None:
        yield (), rank.allocator.external_fragmentation


RANK_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "blockyard_block_bytes", "bytes", "Bytes of KV blocks by state.",
        (*RANK, "state"),
        lambda r: states(r.ledger.blocks, BLOCK_STATES, r.facts.block_bytes),
    ),
    MetricSpec(
        "blockyard_host_block_bytes", "bytes", "Bytes of blocks in host memory by state.",
        (*RANK, "state"),
        lambda r: states(r.ledger.host_blocks, BLOCK_STATES, r.facts.block_bytes),
    ),
    MetricSpec(
        "blockyard_slot_bytes", "bytes", "Bytes of the slots of active blocks by state.",
        (*RANK, "state"),
        lambda r: states(r.ledger.slots, SLOT_STATES, r.facts.block_bytes / r.ledger.block_size),
    ),
    MetricSpec(
        "blockyard_swapped_bytes_total", "bytes",
        "Bytes of blocks moved to host memory (`out`) and back (`in`).",
        (*RANK, "direction"), _swapped_bytes,
    ),
    MetricSpec(
        "blockyard_memory_bytes", "bytes",
        "Bytes by use: `weights`, `activations` (the largest step's peak, 0 when not measured), "
        "`cuda_graphs`, `kv_blocks`.",
        (*RANK, "use"), _memory,
    ),
    MetricSpec(
        "blockyard_allocator_bytes", "bytes",
        "Of a GPU's caching allocator: `reserved`, `allocated`, `slack` (their difference), "
        "`free`, `largest_free`. Absent on a CPU.",
        (*RANK, "state"), _allocator,
    ),
    MetricSpec(
        "blockyard_allocator_fragmentation_ratio", "share",
        "1 - largest / total of what that allocator has free. Absent on a CPU.",
        RANK, _allocator_fragmentation,
    ),
)  # fmt: skip
