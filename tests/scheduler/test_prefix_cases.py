"""Failures of prefix caches known from the field, as black-box cases against the witness."""

from collections.abc import Callable
from typing import Any

import pytest

from blockyard.scheduler.block_keys import PrefixExtras, block_keys
from blockyard.scheduler.config import PreemptionPolicy
from blockyard.workers.adapter_description import AdapterDescription

Make = Callable[..., Any]


def test_o01_whole_prompt_cached(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=64, block_size=16, max_step_tokens=64)
    for length in (32, 31, 33, 16, 1):
        for name in ("first", "second", "third", "fourth"):
            rig.submit(f"{length} {name}", prompt_of(length), max_tokens=4)
            if name in ("first", "second"):
                rig.finish()
        rig.finish()
        cached = (length - 1) // 16 * 16
        assert [rig.cached[f"{length} {name}"] for name in ("second", "third", "fourth")] == [
            cached
        ] * 3
    ledger = rig.scheduler.ledger()
    assert ledger.prefix_hit_tokens == 3 * (16 + 16 + 32) + rig.cached["32 first"]
    assert ledger.prompt_tokens == 4 * (32 + 31 + 33 + 16 + 1)


@pytest.mark.parametrize("policy", PreemptionPolicy)
def test_o02_preempted_then_admitted_on_a_hit(
    policy: PreemptionPolicy, make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=24, max_step_tokens=64, policy=policy, num_host_blocks=10)
    for index in range(8):
        rig.submit(str(index), prompt_of(16) + prompt_of(8, index), max_tokens=40)
    rig.finish()
    ledger = rig.scheduler.ledger()
    assert ledger.preemptions > 0
    # What a preempted request finds again, generated tokens included, it need not compute again.
    first = 8 * (24 + 40 - 1) - ledger.prefix_hit_tokens
    assert rig.computed_tokens == first + ledger.recomputed_tokens
    assert all(cached in (0, 16) for cached in rig.cached.values()), "hits of the first admission"


def test_a_preempted_request_finds_its_own_generated_tokens(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(
        num_blocks=12, max_running=1, max_step_tokens=40, policy=PreemptionPolicy.RECOMPUTE
    )
    rig.submit("low", prompt_of(8), max_tokens=20)
    for _ in range(12):
        rig.step()
    rig.submit("high", prompt_of(5, 1), max_tokens=2, priority=1)
    rig.finish()
    ledger = rig.scheduler.ledger()
    assert (ledger.preemptions, rig.cached["low"]) == (1, 0)
    # 19 of its tokens were computed; 16 of them fill blocks, which nobody needed meanwhile.
    assert ledger.recomputed_tokens == 3
    assert rig.ended == ["high", "low"]


@pytest.mark.parametrize("position", range(12))
def test_o04_prompts_that_differ_in_one_token(
    position: int, make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=40)
    prompt = prompt_of(14)
    other = [*prompt]
    other[position] = (other[position] + 1) % 97
    hints = block_keys(prompt, 4, PrefixExtras())
    rig.submit("A", prompt, max_tokens=4)
    rig.finish()
    rig.submit("B", other, max_tokens=4)
    rig.submit("C", [*other, 1], max_tokens=4, block_keys=hints)
    rig.finish()
    assert rig.cached["B"] == position // 4 * 4
    assert rig.cached["C"] <= 12


def test_o04_ids_that_agree_in_their_low_bits(make_rig: Make) -> None:
    rig = make_rig(num_blocks=64, vocab=200_000)
    prompt = list(range(14))
    for name, shift in (("A", 0), ("B", 256), ("C", 65_536)):
        rig.submit(name, [token + shift for token in prompt], max_tokens=4)
        rig.finish()
    assert (rig.cached["A"], rig.cached["B"], rig.cached["C"]) == (0, 0, 0)


def test_o04_equal_second_blocks_after_different_first_ones(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=40)
    rig.submit("A", prompt_of(4) + prompt_of(9, 7), max_tokens=4)
    rig.finish()
    rig.submit("B", prompt_of(4, 1) + prompt_of(9, 7), max_tokens=4)
    rig.finish()
    assert rig.cached["B"] == 0


@pytest.mark.parametrize(
    "other",
    [
        PrefixExtras(adapter="a", adapter_version="2"),
        PrefixExtras(adapter="a", adapter_version="1", salt="tenant"),
        PrefixExtras(),
    ],
)
def test_o05_another_adapter_or_salt(other: PrefixExtras, make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=40)
    for version in ("1", "2"):
        rig.workers[0].load_adapter(AdapterDescription("a", "/adapters/a", version, 4))
    extras = PrefixExtras(adapter="a", adapter_version="1")
    hints = block_keys(prompt_of(20), 4, extras)
    rig.submit("old", prompt_of(20), max_tokens=4, extras=extras)
    rig.finish()
    rig.submit("new", prompt_of(20), max_tokens=4, extras=other, block_keys=hints)
    rig.finish()
    rig.submit("same", prompt_of(20), max_tokens=4, extras=extras)
    rig.finish()
    assert (rig.cached["new"], rig.cached["same"]) == (0, 16)


def test_o05_a_request_running_across_a_reset_leaves_nothing(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=40)
    rig.submit("across", prompt_of(30), max_tokens=20)
    rig.step()
    rig.step()
    rig.scheduler.reset_prefix_cache()
    rig.check()
    rig.finish()
    assert rig.scheduler.prefix_snapshot() == ()
    rig.submit("cold", prompt_of(30), max_tokens=4)
    rig.finish()
    assert rig.cached["cold"] == 0


def test_o06_a_match_is_taken_anew_at_each_try(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=12, max_step_tokens=64)
    rig.submit("P", prompt_of(24), max_tokens=1)
    rig.finish()
    assert rig.scheduler.ledger().blocks.cached == 6
    rig.submit("long", prompt_of(21, 1), max_tokens=26)
    rig.step()
    rig.submit("P+x", [*prompt_of(24), 5], max_tokens=4)
    cached = []
    while "long" in rig.live():
        rig.step()
        cached.append(rig.scheduler.ledger().blocks.cached)
        assert "P+x" not in rig.started
    assert cached[0] == 6 and cached[-2] == 0, "the long one evicts the prefix block by block"
    rig.finish()
    assert rig.cached["P+x"] == 0


def test_o07_equal_prompts_at_once_are_computed_once(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=32, block_size=4, max_running=8, max_step_tokens=64)
    for round_number in range(3):
        for copy in range(6):
            rig.submit(f"{round_number} {copy}", prompt_of(48), max_tokens=8)
        rig.finish()
    rig.submit("other", [*prompt_of(48)[:47], (prompt_of(48)[47] + 1) % 97], max_tokens=8)
    rig.finish()
    assert rig.scheduler.ledger().preemptions == 0
    assert rig.cached["0 0"] == 0
    assert {cached for name, cached in rig.cached.items() if name != "0 0"} == {44}
    # The first computes all, the others their last prompt block and their answers.
    assert rig.computed_tokens == 48 + 18 * 4 + 19 * 7
    assert rig.scheduler.ledger().blocks.active == 0


def test_o07_equal_blocks_computed_at_once_are_merged(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=32, max_step_tokens=64)
    for copy in range(4):
        rig.submit(str(copy), prompt_of(4), max_tokens=13)
    rig.step()
    ledger = rig.scheduler.ledger()
    assert (ledger.merged_blocks, ledger.blocks.active, ledger.slots.filled) == (3, 1, 4)
    assert ledger.logical_tokens == 16
    while rig.live():
        blocks = rig.scheduler.ledger().blocks
        assert blocks.active <= 4 + 4, "each shares all full blocks with the others"
        rig.step()
    rig.finish()


def test_who_opts_out_neither_finds_nor_leaves(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=32)
    rig.submit("out", prompt_of(20), max_tokens=4, use_prefix_cache=False)
    rig.finish()
    assert rig.scheduler.ledger().blocks.cached == 0
    rig.submit("in", prompt_of(20), max_tokens=4)
    rig.finish()
    rig.submit("out again", prompt_of(20), max_tokens=4, use_prefix_cache=False)
    rig.finish()
    assert rig.cached == {"out": 0, "in": 0, "out again": 0}


def test_what_a_failed_row_computed_is_not_found(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=32, max_step_tokens=64)
    rig.submit("bad", prompt_of(20), max_tokens=4)
    rig.plan()
    rig.fail("bad")
    rig.commit()
    rig.finish()
    assert rig.scheduler.prefix_snapshot() == ()
