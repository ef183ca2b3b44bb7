"""From what somebody asked about capacity to one answer of plain values, ready for JSON.

Each part of the answer is there if what it needs was given; a part that is not there is left out.
Units: bytes, tokens, ratios from 0 to 1.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from blockyard.scheduler.capacity.kv_budget import KvBudget
from blockyard.scheduler.capacity.lengths import Lengths, constant_lengths
from blockyard.scheduler.capacity.plan_alternatives import plan_alternatives
from blockyard.scheduler.capacity.verdict import Verdict, give_verdict
from blockyard.scheduler.capacity.waste_math import (
    BatchWork,
    HoleCase,
    hole_case,
    share_prefix,
    static_batch_work,
)
from blockyard.scheduler.planner import CapacityPlan, plan_capacity

__all__ = ["PlanQuestion", "answer_plan"]


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """What is asked.

    Attributes:
        budget: model and memory; None when no model was named.
        has_limit: the budget's limit was given or came with the model.
        lengths: of requests; None when not given.
        requests: at once, in one group.
        shared_prefix_tokens: that all requests begin with; 0 for none.
        outputs: lengths of one batch's answers.
        static_batching: the batch is static today, so its waste is worth a verdict.
        free_bytes, largest_hole_bytes, request_bytes: a memory with holes.
        notes: what the reader must know of the figures that came in.
    """

    budget: KvBudget | None
    has_limit: bool = False
    lengths: Lengths | None = None
    requests: int | None = None
    shared_prefix_tokens: int = 0
    outputs: tuple[int, ...] = ()
    static_batching: bool = True
    free_bytes: int | None = None
    largest_hole_bytes: int | None = None
    request_bytes: int | None = None
    notes: tuple[str, ...] = ()


def answer_plan(question: PlanQuestion) -> dict[str, Any]:
    """The whole answer, nested.

    Raises:
        ValueError: something needed is missing, or figures contradict one another.
    """
    answer: dict[str, Any] = {}
    assumptions = list(question.notes)
    budget = question.budget
    capacity: CapacityPlan | None = None
    if budget is not None:
        answer |= _model_part(budget)
        if _asks_for_capacity(question, budget):
            if question.lengths is not None:
                question = replace(question, lengths=question.lengths.within(budget.limit))
            lengths = question.lengths or constant_lengths(budget.limit)
            capacity = plan_capacity(
                budget,
                lengths,
                question.requests,
                question.shared_prefix_tokens if question.lengths else 0,
            )
            answer |= _capacity_part(question, budget, capacity)
            assumptions += _assumptions(question, budget)
            answer["alternatives"] = [
                asdict(entry) | {"blocks_per_gpu": entry.blocks_per_gpu}
                for entry in plan_alternatives(
                    budget, lengths, question.shared_prefix_tokens if question.lengths else 0
                )
            ]
        if question.shared_prefix_tokens and question.requests is not None:
            shared = share_prefix(
                question.shared_prefix_tokens,
                question.requests,
                budget.block_size,
                budget.kv_bytes_per_token,
            )
            answer["shared_prefix"] = asdict(shared) | {"saved_bytes": shared.saved_bytes}
    batch = static_batch_work(question.outputs) if question.outputs else None
    if batch is not None:
        answer["batching"] = _batching_part(batch)
    hole = _hole(question, capacity)
    if hole is not None:
        answer["hole"] = asdict(hole) | {
            "external_fragmentation": hole.external_fragmentation,
            "contiguous_serves": hole.contiguous_serves,
            "blocks_serve": hole.blocks_serve,
        }
    if not answer:
        raise ValueError(
            "nothing to plan: give --model or --shape with --max-seq-len and --gpu-memory, "
            "--kv-memory or --requests; or --outputs; or --largest-hole with --request"
        )
    verdict = _verdict(question, capacity, hole, batch)
    answer["verdict"] = verdict.text
    answer["findings"] = [finding.value for finding in verdict.findings]
    answer["assumptions"] = assumptions
    return answer


def _asks_for_capacity(question: PlanQuestion, budget: KvBudget) -> bool:
    if question.has_limit:
        return True
    if budget.has_memory or question.lengths is not None:
        raise ValueError("give --max-seq-len: what does a contiguous server reserve for a request?")
    if question.requests is not None and not question.shared_prefix_tokens:
        raise ValueError("give --max-seq-len (what a request reserves), or --shared-prefix")
    return False


def _model_part(budget: KvBudget) -> dict[str, Any]:
    return {
        "kv_bytes_per_token": budget.kv_bytes_per_token,
        "kv_bytes_per_token_per_rank": budget.rank_kv_bytes_per_token,
        "weight_bytes": budget.weight_bytes,
        "weight_bytes_per_rank": budget.rank_weight_bytes,
        "gpus": budget.num_gpus,
        "tp": budget.num_ranks,
        "groups": budget.num_groups,
        "block_size": budget.block_size,
    }


def _capacity_part(question: PlanQuestion, budget: KvBudget, plan: CapacityPlan) -> dict[str, Any]:
    contiguous, blocks = asdict(plan.contiguous), asdict(plan.blocks)
    part: dict[str, Any] = {
        "max_seq_len": budget.limit,
        "kv_memory_bytes": plan.kv_memory_bytes,
        "total_slots": plan.total_slots,
        "kv_bytes_contiguous": plan.kv_bytes_contiguous,
        "contiguous": contiguous,
        "blocks": blocks,
    }
    if budget.kv_memory_bytes is None and budget.gpu_memory_bytes is not None:
        part["allowance_bytes"] = budget.allowance_bytes
    if question.requests is not None:
        part["requests"] = question.requests
    if question.lengths is not None:
        part["mean_length"] = question.lengths.mean
        part["p99_length"] = question.lengths.p99
        part["gain"] = plan.gain
    else:
        # Full reservations are an upper bound of use, not a figure to show as utilisation.
        for counts in (contiguous, blocks):
            for name in ("filled_slots", "filled_bytes", "filled_ratio", "pool_filled_ratio"):
                counts.pop(name, None)
        contiguous.pop("reservation_waste")
    if budget.num_groups > 1:
        part["cluster"] = {
            "contiguous_concurrency": plan.contiguous.concurrency * budget.num_groups,
            "blocks_concurrency": plan.blocks.concurrency * budget.num_groups,
        }
    return part


def _assumptions(question: PlanQuestion, budget: KvBudget) -> list[str]:
    said: list[str] = []
    if question.lengths is None:
        said.append("no --lengths: every request is counted as long as the limit, the worst case")
    else:
        said.append(question.lengths.assumption)
        said.append("lengths are final ones, so before its end a request holds less than this")
    if not budget.has_memory:
        said.append("no memory was given: it is what a contiguous server needs for the requests")
    elif budget.kv_memory_bytes is None:
        gib = budget.allowance_bytes / 2**30
        said.append(
            f"{gib:.1f} GiB a GPU are set aside for CUDA context, activations and graphs: a guess "
            "(--allowance), a server measures it at load"
        )
    if budget.shape.num_parameters and budget.num_ranks > 1:
        said.append("weights are counted as split evenly over the ranks")
    if budget.draft is not None:
        said.append(
            "blocks hold the KV of the draft model too, "
            f"{budget.draft.kv_bytes_per_token(budget.kv_dtype):,} B of each token; a contiguous "
            "server is counted with the same"
        )
    return said


def _batching_part(batch: BatchWork) -> dict[str, Any]:
    return {
        "static": asdict(batch) | {"useful_ratio": batch.useful_ratio},
        "continuous": {"useful": batch.useful, "computed": batch.useful, "useful_ratio": 1.0},
    }


def _hole(question: PlanQuestion, capacity: CapacityPlan | None) -> HoleCase | None:
    """The memory with holes; a reservation is the request and the rest is free, if not told."""
    hole = question.largest_hole_bytes
    if hole is None:
        if question.free_bytes is not None or question.request_bytes is not None:
            raise ValueError("give --largest-hole too: what is free in one piece?")
        return None
    needed, free, budget = question.request_bytes, question.free_bytes, question.budget
    if budget is not None and capacity is not None:
        reserved = budget.limit * capacity.kv_bytes_per_token
        needed = needed if needed is not None else reserved
        rest = capacity.kv_memory_bytes - capacity.contiguous.running * reserved
        if free is None and budget.has_memory and question.requests is not None and rest >= hole:
            free = rest
    if needed is None:
        raise ValueError("give --request too: how many bytes does the refused request need?")
    return hole_case(free, hole, needed)


def _verdict(
    question: PlanQuestion,
    capacity: CapacityPlan | None,
    hole: HoleCase | None,
    batch: BatchWork | None,
) -> Verdict:
    known = capacity is not None and question.lengths is not None and question.budget is not None
    verdict = give_verdict(
        capacity.contiguous.filled_ratio if known and capacity else None,
        question.lengths.p99 if known and question.lengths else None,
        question.budget.limit if known and question.budget else None,
        hole.external_fragmentation if hole is not None else None,
        capacity.gain if known and capacity else None,
        batch.useful_ratio if batch is not None and question.static_batching else None,
    )
    if not known and hole is None and batch is None:
        return Verdict((), "none yet: give --max-seq-len and --lengths to judge the waste.")
    return verdict
