"""How many groups there should be: each need alone, both thresholds, and nothing that swings."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from blockyard.scheduler.group_load import ClusterLoad, GroupLoad, choose_retiring
from blockyard.scheduler.scaling import ScalingDecision, ScalingMemory, ScalingPolicy, decide_groups

POLICY = ScalingPolicy(min_groups=1, max_groups=8, quiet_seconds=60.0, idle_seconds=100.0)


def group(number: int = 0, **counts: Any) -> GroupLoad:
    quiet: dict[str, Any] = {
        "total_blocks": 1000,
        "free_blocks": 1000,
        "block_size": 16,
        "places": 100,
        "requests": 0,
        "queued_tokens": 0,
        "prefill_tokens_per_second": 1000.0,
        "admitted_tokens": 0,
    }
    return GroupLoad(f"g{number}", **{**quiet, **counts})


def once(*groups: GroupLoad, policy: ScalingPolicy = POLICY, **outside: Any) -> ScalingDecision:
    return decide_groups(policy, ClusterLoad(groups, **outside), ScalingMemory(), 0.0)


@pytest.mark.parametrize(
    ("counts", "groups", "reason"),
    [
        ({}, 1, "as many"),
        ({"free_blocks": 151, "requests": 10}, 1, "as many"),
        ({"free_blocks": 149, "requests": 10}, 2, "blocks"),
        # 400 held and 7,300 tokens that want 457 more: 857 of 1,000.
        ({"free_blocks": 600, "queued_tokens": 7300, "prefill_tokens_per_second": 1e5}, 2, "block"),
        ({"requests": 86}, 2, "places"),
        ({"requests": 85}, 1, "as many"),
        ({"queued_tokens": 2000}, 1, "as many"),
        ({"queued_tokens": 2001}, 2, "queues"),
        ({"queued_tokens": 9000}, 5, "queues"),
        ({"queued_tokens": 900_000, "prefill_tokens_per_second": 0.0}, 8, "blocks"),
    ],
)
def test_each_need_asks_for_groups(counts: dict[str, Any], groups: int, reason: str) -> None:
    decision = once(group(**counts))
    assert decision.groups == groups
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("outside", "groups", "reason"),
    [
        ({"queued_requests": 25, "queued_tokens": 400}, 1, "as many"),
        ({"queued_requests": 26, "queued_tokens": 400}, 2, "places"),
        ({"queued_requests": 1, "queued_tokens": 2000}, 1, "as many"),
        ({"queued_requests": 1, "queued_tokens": 2001}, 2, "queues"),
        ({"queued_requests": 1, "queued_tokens": 9000}, 5, "queues"),
    ],
)
def test_what_waits_for_any_group_counts_as_what_waits_at_one(
    outside: dict[str, Any], groups: int, reason: str
) -> None:
    decision = once(group(requests=60), **outside)
    assert decision.groups == groups
    assert reason in decision.reason
    assert decision.memory.idle_since is None


def test_work_that_waits_outside_has_come_in_once() -> None:
    memory = ScalingMemory()
    for second in range(60):
        admitted, outside = 300 * second, 200 * second
        one = group(requests=9, admitted_tokens=admitted)
        load = ClusterLoad((one,), queued_requests=1, queued_tokens=outside)
        memory = decide_groups(POLICY, load, memory, float(second)).memory
    assert 400 < memory.arriving < 500
    for second in range(60, 90):  # what waited is let in, and nothing comes
        outside -= 300
        admitted += 300
        one = group(requests=9, admitted_tokens=admitted)
        load = ClusterLoad((one,), queued_requests=1, queued_tokens=outside)
        memory = decide_groups(POLICY, load, memory, float(second)).memory
    assert memory.arriving < 250


def test_groups_that_start_are_counted_and_bounds_hold() -> None:
    full = group(free_blocks=0, queued_tokens=30_000)
    assert once(full).groups == 8
    assert once(full, starting=7).groups == 8
    assert once(policy=replace(POLICY, min_groups=3)).groups == 3
    # Fewer than there are at once, where there are more than may be.
    assert once(*map(group, range(9))).groups == 8


def test_it_grows_before_memory_is_full() -> None:
    memory = ScalingMemory()
    for second in range(60):
        free = 1000 - 14 * second
        decision = decide_groups(
            POLICY, ClusterLoad((group(free_blocks=free, requests=5),)), memory, float(second)
        )
        memory = decision.memory
        if decision.groups > 1:
            break
    # At 14 blocks a second 850 are full after a minute; a group takes half a minute to start.
    assert decision.reason == "blocks run short"
    assert 25 <= second <= 40


def test_it_shrinks_only_when_the_rest_has_long_held_all() -> None:
    def run(held: int, seconds: range, memory: ScalingMemory) -> tuple[int, int, ScalingMemory]:
        for second in seconds:
            groups = tuple(group(n, free_blocks=1000 - held, requests=3) for n in range(3))
            decision = decide_groups(POLICY, ClusterLoad(groups), memory, float(second))
            memory = decision.memory
            if decision.groups != 3:
                break
        return decision.groups, second, memory

    # 3 x 401 blocks do not fit into 60 % of two groups, 3 x 399 do.
    assert run(401, range(300), ScalingMemory())[0] == 3
    groups, second, _ = run(399, range(300), ScalingMemory())
    assert (groups, second) == (2, 60)
    # One burst in between, and the quiet time begins anew.
    _, _, memory = run(399, range(50), ScalingMemory())
    _, _, memory = run(450, range(50, 51), memory)
    _, second, _ = run(399, range(51, 300), memory)
    # The burst's growth is still averaged out for a while after it.
    assert 110 <= second <= 160


def test_a_group_that_takes_long_to_start_is_not_idle_before_it_is_up() -> None:
    policy = replace(POLICY, min_groups=0, quiet_seconds=1.0)
    memory = ScalingMemory()
    for second in range(400):  # longer than `idle_seconds`; who called it has gone meanwhile
        memory = decide_groups(policy, ClusterLoad((), starting=1), memory, float(second)).memory
    up = ClusterLoad((group(),))
    first = decide_groups(policy, up, memory, 400.0)
    assert (first.groups, first.memory.idle_since) == (1, 400.0)
    assert decide_groups(policy, up, first.memory, 499.0).groups == 1


def test_to_zero_after_long_idleness_and_back_at_once() -> None:
    policy = replace(POLICY, min_groups=0)
    memory, now = ScalingMemory(), 0.0
    while (decision := decide_groups(policy, ClusterLoad((group(),)), memory, now)).groups:
        memory, now = decision.memory, now + 1
    assert now == 159  # the last look with a need for one is a quiet time ago
    assert decide_groups(policy, ClusterLoad(()), decision.memory, now + 1).groups == 0
    woken = decide_groups(policy, ClusterLoad((), 0, 1), decision.memory, now + 2)
    assert (woken.groups, woken.memory.idle_since) == (1, None)
    assert decide_groups(policy, ClusterLoad((), 1, 1), woken.memory, now + 3).groups == 1
    # Who is idle but must not go to none stays.
    memory = ScalingMemory()
    for second in range(400):
        decision = decide_groups(POLICY, ClusterLoad((group(),)), memory, float(second))
        memory = decision.memory
    assert decision.groups == 1


class Cluster:
    """Groups that let in so many tokens a second and hold each request for a while."""

    def __init__(
        self, policy: ScalingPolicy, tokens_per_second: float, held_seconds: float
    ) -> None:
        self.policy = policy
        self.rate = tokens_per_second
        self.held_seconds = held_seconds
        self.up = policy.min_groups
        self.ready_at: list[float] = []
        self.queues: dict[int, float] = {}
        self.admitted: dict[int, float] = {}
        self.held: list[tuple[float, float]] = []
        self.memory = ScalingMemory()
        self.changes: list[tuple[float, int]] = []
        self.now = 0.0

    def second(self, tokens: float) -> None:
        self.now += 1.0
        self.up += sum(at <= self.now for at in self.ready_at)
        self.ready_at = [at for at in self.ready_at if at > self.now]
        for number in range(self.up):
            queue = self.queues.get(number, 0.0) + tokens / self.up
            done = min(queue, self.rate)
            self.queues[number] = queue - done
            self.admitted[number] = self.admitted.get(number, 0.0) + done
            self.held.append((self.now + self.held_seconds, done / 16))
        self.held = [entry for entry in self.held if entry[0] > self.now]
        blocks = sum(count for _, count in self.held) / max(1, self.up)
        groups = tuple(
            group(
                number,
                free_blocks=max(0, round(1000 - blocks)),
                requests=math.ceil(blocks / 10),
                queued_tokens=round(self.queues[number]),
                prefill_tokens_per_second=self.rate,
                admitted_tokens=round(self.admitted[number]),
            )
            for number in range(self.up)
        )
        there = self.up + len(self.ready_at)
        load = ClusterLoad(groups, len(self.ready_at))
        decision = decide_groups(self.policy, load, self.memory, self.now)
        self.memory = decision.memory
        if decision.groups > there:
            self.ready_at += [self.now + 10.0] * (decision.groups - there)
        elif decision.groups < there:
            leftover = [self.queues.pop(number) for number in range(decision.groups, self.up)]
            self.up = decision.groups
            if self.up:
                self.queues[0] += sum(leftover)
            for number in [n for n in self.admitted if n >= self.up]:
                del self.admitted[number]
        if decision.groups != there:
            self.changes.append((self.now, decision.groups))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("mean_tokens", "held_seconds"),
    [
        (2500.0, 2.0),  # three groups' arithmetic, little memory
        (600.0, 60.0),  # one group's arithmetic, three groups' memory
        (5000.0, 5.0),
        (300.0, 3.0),
    ],
)
def test_steady_load_does_not_make_it_swing(
    seed: int, mean_tokens: float, held_seconds: float
) -> None:
    rng = random.Random(seed)
    cluster = Cluster(POLICY, 1000.0, held_seconds)
    for _ in range(900):
        # Five requests a second, each time as chance has it.
        arriving = sum(rng.random() < 0.05 for _ in range(100))
        cluster.second(arriving * mean_tokens / 5)
    settled = [change for change in cluster.changes if change[0] > 300]
    assert len(settled) <= 1, cluster.changes
    assert cluster.up >= mean_tokens / 1000.0
    assert max(cluster.queues.values()) < 5000


def test_it_follows_a_day_up_and_down() -> None:
    cluster = Cluster(replace(POLICY, min_groups=0), 1000.0, 5.0)
    cluster.up = 1
    sizes = []
    for second in range(3600):
        level = max(0.0, math.sin(second / 3600 * 2 * math.pi))
        cluster.second(6000 * level)
        sizes.append(cluster.up)
    assert 7 <= max(sizes) <= 8
    assert cluster.up == 0
    counts = [count for _, count in cluster.changes]
    peak = counts.index(max(counts))
    assert counts[: peak + 1] == sorted(counts[: peak + 1])
    assert counts[peak:] == sorted(counts[peak:], reverse=True)


def test_the_least_busy_go_first() -> None:
    groups = [group(0, requests=2), group(1, requests=1, free_blocks=5), group(2, requests=1)]
    assert choose_retiring(groups, 2) == ("g2", "g1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_groups": 3, "max_groups": 2}, "min <= max"),
        ({"max_groups": 0, "min_groups": 0}, "max >= 1"),
        ({"fit_share": 0.9}, "swing"),
        ({"quiet_seconds": 0.0}, "quiet_seconds"),
        ({"ahead_seconds": math.inf}, "ahead_seconds"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScalingPolicy(**options)
