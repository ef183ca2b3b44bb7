"""What is replayed on what: makes the simulated groups of one allocator and runs them.

Knows nothing of files or model names. Units: bytes, tokens, blocks, simulated seconds.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.contiguous.allocators import POLICIES, make_allocator
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.replay import Feed, run_replay
from blockyard.scheduler.scaling import ScalingPolicy
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.simulated.arrivals import Arrival, PromptWriter
from blockyard.scheduler.simulated.contiguous_group import ContiguousGroup
from blockyard.scheduler.simulated.fleet import ScaledGroups
from blockyard.scheduler.simulated.group import SimulatedGroup
from blockyard.scheduler.simulated.memory_timeline import SlotState
from blockyard.scheduler.simulated.paged_group import PagedGroup
from blockyard.scheduler.simulated.records import ReplayRecords
from blockyard.scheduler.simulated.step_cost import StepCost

__all__ = ["ALLOCATORS", "AllocatorOutcome", "ReplaySetup", "replay_allocator"]

ALLOCATORS = ("blocks", *(f"contiguous:{policy}" for policy in POLICIES))
"""Ways to give memory out that a replay knows."""

_EVERYBODY = 2**62
"""A replay refuses what can never fit, and nobody because of the load."""


@dataclass(frozen=True, slots=True)
class ReplaySetup:
    """Groups that are alike.

    Attributes:
        cost: of steps and copies in one group.
        num_groups: how many there are.
        num_blocks: blocks of one group's pool; contiguous memory has as many slots.
        block_size: token slots in a block.
        limit: longest prompt plus answer; what `max_seq_len` reserves.
        max_running: most requests in a step.
        max_step_tokens: most tokens computed in a step.
        preemption: what becomes of preempted requests' blocks.
        num_host_blocks: blocks of one group's pool in host memory.
        scaling: how many of the groups are up at a time; None: all of them.
        start_seconds: until a group that is wanted takes requests.
    """

    cost: StepCost
    num_groups: int
    num_blocks: int
    block_size: int
    limit: int
    max_running: int
    max_step_tokens: int
    preemption: PreemptionPolicy = PreemptionPolicy.AUTO
    num_host_blocks: int = 0
    scaling: ScalingPolicy | None = None
    start_seconds: float = 15.0

    def scaled(self) -> ScaledGroups | None:
        """How the groups are scaled, if they are."""
        if self.scaling is None:
            return None
        return ScaledGroups(self.scaling, self.max_running, self.start_seconds)

    def config(self) -> SchedulerConfig:
        """Limits of each group's scheduler."""
        return SchedulerConfig(
            max_context_tokens=self.limit,
            block_size=self.block_size,
            max_running=self.max_running,
            max_step_tokens=self.max_step_tokens,
            max_waiting=_EVERYBODY,
            preemption=self.preemption,
        )

    def rates(self) -> RateMeter:
        """What a server would have measured when it loaded: the rates of a full step."""
        tokens = self.max_step_tokens
        return RateMeter(
            block_bytes=self.cost.block_bytes,
            prefill_tokens_per_second=tokens / self.cost.compute_seconds([0], [tokens]),
            link_bytes_per_second=self.cost.link_bytes_per_second,
        )


@dataclass(frozen=True, slots=True)
class AllocatorOutcome:
    """What one allocator came to: figures by name, and memory over time (seconds, slots)."""

    figures: dict[str, Any]
    memory: list[tuple[float, SlotState]]


def replay_allocator(
    name: str,
    setup: ReplaySetup,
    arrivals: Iterable[Arrival],
    feed: Feed = Feed.RECORDED,
    *,
    run_ahead: bool = True,
) -> AllocatorOutcome:
    """Replay on one of `ALLOCATORS`.

    Raises:
        ValueError: no such allocator.
    """
    records = ReplayRecords()
    finish = _make(name, setup, records)
    figures = finish(arrivals, feed, run_ahead)
    return AllocatorOutcome(
        {**records.to_json(), **figures}, records.memory.means(records.measured_seconds)
    )


_Runner = Callable[[Iterable[Arrival], Feed, bool], dict[str, Any]]


def _make(name: str, setup: ReplaySetup, records: ReplayRecords) -> _Runner:
    ids = [f"g{index:04}" for index in range(setup.num_groups)]
    if name == "blocks":
        prompts = PromptWriter()
        paged = [
            PagedGroup(
                group_id,
                records,
                Scheduler(setup.config(), setup.num_blocks, setup.num_host_blocks, setup.rates()),
                setup.cost,
                prompts,
            )
            for group_id in ids
        ]

        return lambda arrivals, feed, ahead: {
            **_run(arrivals, paged, records, feed, ahead, setup),
            **_paged_figures(paged),
        }
    kind, _, policy = name.partition(":")
    if kind != "contiguous" or policy not in POLICIES:
        raise ValueError(f"allocator {name!r} is not known; give one of {', '.join(ALLOCATORS)}")
    contiguous = [
        ContiguousGroup(
            group_id,
            records,
            make_allocator(policy, setup.num_blocks * setup.block_size, setup.limit),
            setup.config(),
            setup.cost,
        )
        for group_id in ids
    ]

    return lambda arrivals, feed, ahead: {
        **_run(arrivals, contiguous, records, feed, ahead, setup),
        **_contiguous_figures(contiguous),
    }


def _run(
    arrivals: Iterable[Arrival],
    groups: Sequence[SimulatedGroup],
    records: ReplayRecords,
    feed: Feed,
    ahead: bool,
    setup: ReplaySetup,
) -> dict[str, Any]:
    fleet = run_replay(arrivals, groups, records, feed, run_ahead=ahead, scaled=setup.scaled())
    return {} if fleet is None else {"scaling": fleet.figures(records.simulated_seconds)}


def _paged_figures(groups: list[PagedGroup]) -> dict[str, Any]:
    ledgers = [group.ledger() for group in groups]
    prompt = sum(ledger.prompt_tokens for ledger in ledgers)
    hits = sum(ledger.prefix_hit_tokens for ledger in ledgers)
    kinds = [ledger.preempted for ledger in ledgers]
    return {
        "preemptions": sum(ledger.preemptions for ledger in ledgers),
        "preemptions_by_kind": {
            "swapped": sum(counts.swapped for counts in kinds),
            "recomputed": sum(counts.recomputed for counts in kinds),
            "held": sum(counts.held for counts in kinds),
        },
        "recomputed_tokens": sum(ledger.recomputed_tokens for ledger in ledgers),
        "prompt_tokens": prompt,
        "prefix_hit_tokens": hits,
        "prefix_hit_ratio": hits / prompt if prompt else 0.0,
        "stalled_steps": sum(ledger.stalled_steps for ledger in ledgers),
        "steps": sum(ledger.step for ledger in ledgers),
    }


def _contiguous_figures(groups: list[ContiguousGroup]) -> dict[str, Any]:
    books = [group.allocator.books() for group in groups]
    first = next((entry.first_fragmented for entry in books if entry.first_fragmented), None)
    return {
        "preemptions": sum(group.preemptions for group in groups),
        "recomputed_tokens": sum(group.recomputed_tokens for group in groups),
        "prefix_hit_ratio": 0.0,
        "moves": sum(entry.moves for entry in books),
        "moved_tokens": sum(entry.moved_slots for entry in books),
        "first_fragmented": None
        if first is None
        else {
            "needed_slots": first.needed,
            "free_slots": first.free,
            "largest_hole_slots": first.largest_hole,
            "running": first.running,
        },
        "steps": sum(group.ledger().step for group in groups),
    }
