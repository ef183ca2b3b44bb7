"""Every Prometheus metric of the books, declared once: of groups here, of others beside it.

docs/metrics.md is made from these. Nothing is kept here: values are read from a report when
somebody asks. Units: as each says.
"""

from collections.abc import Callable, Iterator

from blockyard.cluster.books.metric_kinds import (
    GROUP,
    HistogramSpec,
    MetricSpec,
    Samples,
    one,
    ratio,
    states,
)
from blockyard.cluster.books.rank_metrics import BLOCK_STATES, RANK_METRICS, SLOT_STATES
from blockyard.cluster.books.shadow_metrics import SHADOW_METRICS
from blockyard.cluster.books.step_meter import PartTimes
from blockyard.cluster.dispatch import GroupReport

__all__ = ["GROUP_METRICS", "HISTOGRAMS", "METRICS"]

_KINDS = ("swapped", "recomputed")


def _info(report: GroupReport) -> Samples:
    yield (report.model, report.device, report.dtype), 1


def _wastes(report: GroupReport) -> Samples:
    held = report.ledger.blocks.active * report.ledger.block_size
    yield ("reservation",), ratio(report.ledger.slots.promised, held)
    yield ("internal",), ratio(report.ledger.slots.empty_tail, held)
    yield ("external",), 0.0


def _swapped(report: GroupReport) -> Samples:
    yield ("out",), report.ledger.preempted.blocks_out
    yield ("in",), report.ledger.preempted.blocks_in


def _both_ways(name: str) -> Callable[[GroupReport], Samples]:
    """What has gone to other groups (`out`), and come from there (`in`)."""

    def read(report: GroupReport) -> Samples:
        yield ("out",), getattr(report.ledger.moves, f"{name}_out")
        yield ("in",), getattr(report.ledger.moves, f"{name}_in")

    return read


def _estimated_seconds(report: GroupReport) -> Samples:
    preempted = report.ledger.preempted
    yield ("swapped",), preempted.swap_estimated_seconds
    yield ("recomputed",), preempted.recompute_estimated_seconds


def _real_seconds(report: GroupReport) -> Samples:
    preempted = report.ledger.preempted
    yield ("swapped",), preempted.swap_seconds
    yield ("recomputed",), preempted.recompute_seconds


def _filled_ratio(report: GroupReport) -> float:
    ledger = report.ledger
    return ratio(ledger.slots.filled, ledger.blocks.active * ledger.block_size)


def _pool_filled_ratio(report: GroupReport) -> float:
    ledger = report.ledger
    return ratio(ledger.slots.filled, ledger.blocks.total * ledger.block_size)


def _sharing_ratio(report: GroupReport) -> float:
    filled = report.ledger.slots.filled
    return report.ledger.logical_tokens / filled if filled else 1.0


def _step_parts(report: GroupReport) -> Iterator[tuple[tuple[str, ...], PartTimes]]:
    for part in report.books.steps.parts:
        yield (part.part,), part


HISTOGRAMS: tuple[HistogramSpec, ...] = (
    HistogramSpec(
        "blockyard_step_seconds",
        "Where the time of steps goes: `plan` making the plan, `wire` to the workers and back, "
        "`copy` moving blocks, `forward` the model, `sample` choosing tokens (on a GPU with the "
        "wait for the model), `commit` booking and telling; together the whole step.",
        (*GROUP, "part"), _step_parts,
    ),
)  # fmt: skip

GROUP_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "blockyard_group_info", "1", "A group that answers; always 1.",
        (*GROUP, "model", "device", "dtype"), _info,
    ),
    MetricSpec(
        "blockyard_blocks", "blocks",
        "KV blocks by state: `free`, `cached`, `active`, `fenced`; they add up to the pool.",
        (*GROUP, "state"), lambda r: states(r.ledger.blocks, BLOCK_STATES),
    ),
    MetricSpec(
        "blockyard_host_blocks", "blocks",
        "Blocks in host memory by state: `free`, `cached`, `active`, `fenced`; they add up to "
        "that pool.",
        (*GROUP, "state"), lambda r: states(r.ledger.host_blocks, BLOCK_STATES),
    ),
    MetricSpec(
        "blockyard_slots", "slots",
        "Token slots of active blocks: `filled`, `promised`, `empty_tail`.",
        (*GROUP, "state"), lambda r: states(r.ledger.slots, SLOT_STATES),
    ),
    MetricSpec(
        "blockyard_requests", "requests", "Live requests: `running`, `waiting`, `parked`.",
        (*GROUP, "state"),
        lambda r: states(r.ledger.requests, ("running", "waiting", "parked")),
    ),
    MetricSpec(
        "blockyard_waste_ratio", "share",
        "The three wastes, as a share of the slots of active blocks: `reservation`, `internal`, "
        "`external` (0 by construction).",
        (*GROUP, "waste"), _wastes,
    ),
    MetricSpec(
        "blockyard_filled_ratio", "share", "Share of the slots of active blocks that hold tokens.",
        GROUP, one(_filled_ratio),
    ),
    MetricSpec(
        "blockyard_pool_filled_ratio", "share",
        "Share of all slots that hold tokens of live requests.",
        GROUP, one(_pool_filled_ratio),
    ),
    MetricSpec(
        "blockyard_held_tokens", "tokens",
        "Computed tokens, counted for every request that holds them.",
        GROUP, one(lambda r: r.ledger.logical_tokens),
    ),
    MetricSpec(
        "blockyard_sharing_ratio", "share",
        "Held tokens for each filled slot; above 1 by sharing.",
        GROUP, one(_sharing_ratio),
    ),
    MetricSpec(
        "blockyard_steps_total", "steps", "Forward passes.",
        GROUP, one(lambda r: r.ledger.step),
    ),
    MetricSpec(
        "blockyard_preemptions_total", "preemptions",
        "How often a running request had to give up its place.",
        GROUP, one(lambda r: r.ledger.preemptions),
    ),
    MetricSpec(
        "blockyard_preempted_total", "preemptions",
        "The same by what became of the blocks taken first: `swapped`, `recomputed`, `held` (only "
        "the place was taken), `moved` (to another group).",
        (*GROUP, "kind"),
        lambda r: states(r.ledger.preempted, (*_KINDS, "held", "moved")),
    ),
    MetricSpec(
        "blockyard_ordered_preemptions_total", "preemptions",
        "Those of them in which the central scheduler had decided what becomes of the victim.",
        GROUP, one(lambda r: r.ledger.preempted.ordered),
    ),
    MetricSpec(
        "blockyard_preemption_estimated_seconds_total", "seconds",
        "What preemptions were to cost when they were decided, `swapped` or `recomputed`.",
        (*GROUP, "kind"), _estimated_seconds,
    ),
    MetricSpec(
        "blockyard_preemption_seconds_total", "seconds",
        "What they did cost: of `swapped` the copies, of `recomputed` the share of steps that "
        "went to tokens computed again.",
        (*GROUP, "kind"), _real_seconds,
    ),
    MetricSpec(
        "blockyard_swapped_blocks_total", "blocks",
        "Blocks moved to host memory (`out`) and back (`in`).",
        (*GROUP, "direction"), _swapped,
    ),
    MetricSpec(
        "blockyard_moved_requests_total", "requests",
        "Requests that came from another group where they had begun: `brought` with blocks that "
        "they had there, `recomputed` without; `cut_short` those of both whose transfer ended "
        "before all was there.",
        (*GROUP, "kind"),
        lambda r: states(r.ledger.moves, ("brought", "recomputed", "cut_short")),
    ),
    MetricSpec(
        "blockyard_moved_blocks_total", "blocks",
        "Blocks that went over the wire to other groups (`out`) and came from there (`in`).",
        (*GROUP, "direction"), _both_ways("blocks"),
    ),
    MetricSpec(
        "blockyard_moved_bytes_total", "bytes",
        "The same, `out` and `in`, in bytes of all ranks; with what came too late.",
        (*GROUP, "direction"), _both_ways("bytes"),
    ),
    MetricSpec(
        "blockyard_moved_tokens_total", "tokens",
        "Tokens that need not be computed again because their blocks came from another group.",
        GROUP, one(lambda r: r.ledger.moves.tokens_in),
    ),
    MetricSpec(
        "blockyard_move_estimated_seconds_total", "seconds",
        "What transfers from other groups were to take when they were begun.",
        GROUP, one(lambda r: r.ledger.moves.estimated_seconds),
    ),
    MetricSpec(
        "blockyard_move_seconds_total", "seconds",
        "What they took.",
        GROUP, one(lambda r: r.ledger.moves.seconds),
    ),
    MetricSpec(
        "blockyard_wire_bytes_per_second", "bytes_per_second",
        "From other groups to each rank, as measured last; 0: not yet.",
        GROUP, one(lambda r: r.ledger.wire_bytes_per_second),
    ),
    MetricSpec(
        "blockyard_stalled_steps_total", "steps",
        "Plans that computed nothing while work waited; 0 in a healthy group.",
        GROUP, one(lambda r: r.ledger.stalled_steps),
    ),
    MetricSpec(
        "blockyard_reforms_total", "reforms",
        "How often the group lost a rank and was formed anew in its place.",
        GROUP, one(lambda r: r.books.steps.reforms),
    ),
    MetricSpec(
        "blockyard_prompt_tokens_total", "tokens",
        "Tokens of requests when they were first admitted.",
        GROUP, one(lambda r: r.ledger.prompt_tokens),
    ),
    MetricSpec(
        "blockyard_prefix_hit_tokens_total", "tokens",
        "Those of them found in the prefix index.",
        GROUP, one(lambda r: r.ledger.prefix_hit_tokens),
    ),
    MetricSpec(
        "blockyard_recomputed_tokens_total", "tokens", "Tokens computed again after preemptions.",
        GROUP, one(lambda r: r.ledger.recomputed_tokens),
    ),
    MetricSpec(
        "blockyard_guessed_tokens_total", "tokens",
        "Next tokens that were guessed and checked (`--speculate`).",
        GROUP, one(lambda r: r.ledger.guessed_tokens),
    ),
    MetricSpec(
        "blockyard_right_guesses_total", "tokens", "Those of them that were right.",
        GROUP, one(lambda r: r.ledger.right_guesses),
    ),
    MetricSpec(
        "blockyard_merged_blocks_total", "blocks", "Blocks given up for an equal one.",
        GROUP, one(lambda r: r.ledger.merged_blocks),
    ),
    MetricSpec(
        "blockyard_copied_blocks_total", "blocks",
        "Blocks copied because one of those who shared them went on writing.",
        GROUP, one(lambda r: r.ledger.copied_blocks),
    ),
)  # fmt: skip

METRICS: tuple[MetricSpec, ...] = (*GROUP_METRICS, *RANK_METRICS, *SHADOW_METRICS)
