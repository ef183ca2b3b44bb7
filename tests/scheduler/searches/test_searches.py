"""Searches in the scheduler: they find what a search on paper finds, whatever happens to blocks."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from blockyard.scheduler.config import PreemptionPolicy

Make = Callable[..., Any]
VOCAB = 97


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("width", [2, 3, 8])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stop_token_ids": tuple(range(0, 97, 5))},
        {"stop_token_ids": tuple(range(0, 97, 5)), "early_stopping": True},
        {"stop_token_ids": tuple(range(0, 97, 3)), "min_tokens": 4, "length_penalty": -2.0},
        {"stop_token_ids": tuple(range(0, 97, 5)), "length_penalty": 2.5},
    ],
)
def test_a_search_finds_what_one_on_paper_finds(
    make_yard: Make,
    search_on_paper: Make,
    depth: int,
    width: int,
    options: dict[str, Any],
    prompt_of: Make,
) -> None:
    for salt in range(4):
        yard = make_yard(depth=depth, max_running=12)
        spec = yard.submit("s", prompt_of(11 + salt, salt), width, max_tokens=14, **options)
        yard.submit("other", prompt_of(7, salt), max_tokens=20)
        yard.finish()
        assert len(yard.ended["s"]) == width == len(search_on_paper(spec))
        assert yard.scheduler.ledger().recomputed_tokens == 0


def test_beams_share_blocks_and_compute_a_token_each(make_yard: Make, prompt_of: Make) -> None:
    yard = make_yard(num_blocks=40)
    yard.submit("s", prompt_of(41), 4, max_tokens=6)
    for _ in range(5):
        yard.step()
    ledger = yard.scheduler.ledger()
    assert ledger.requests.running == 4
    # Ten full blocks of the prompt are held once; a beam has two or three of its own at most.
    assert 10 < ledger.blocks.active <= 10 + 4 * 3
    yard.finish()
    assert yard.computed == 41 + 4 * 5


@pytest.mark.parametrize("policy", PreemptionPolicy)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_blocks", [7, 9, 12, 16])
def test_a_search_ends_in_a_pool_that_holds_but_one_beam(
    make_yard: Make, policy: PreemptionPolicy, depth: int, num_blocks: int, prompt_of: Make
) -> None:
    for salt in range(3):
        yard = make_yard(num_blocks, depth, policy, num_host_blocks=5)
        yard.submit("a", prompt_of(12, salt), 4, max_tokens=13)
        yard.submit("b", prompt_of(9, salt), 3, max_tokens=13, stop_token_ids=(1, 2, 3))
        yard.submit("c", prompt_of(5, salt), max_tokens=16)
        yard.finish()
        assert len(yard.ended) == 3
        if num_blocks == 7:
            assert yard.scheduler.ledger().preemptions > 0


@pytest.mark.parametrize("policy", PreemptionPolicy)
def test_what_is_computed_again_is_counted(
    policy: PreemptionPolicy, make_yard: Make, prompt_of: Make
) -> None:
    yard = make_yard(8, policy=policy, num_host_blocks=2)
    yard.submit("a", prompt_of(12), 4, max_tokens=13)
    yard.finish()
    again = yard.scheduler.ledger().recomputed_tokens
    assert again > 0 and yard.computed - again == 12 + 4 * 12


def test_searches_meet_all_that_happens_to_requests(make_yard: Make) -> None:
    """Arrivals, priorities, aborts of whole requests and of choices, at random."""
    for seed in range(12):
        draw = random.Random(seed)
        yard = make_yard(
            draw.randint(14, 30),
            draw.choice([1, 2]),
            draw.choice(list(PreemptionPolicy)),
            num_host_blocks=draw.choice([0, 6]),
        )
        unwanted: set[str] = set()
        for number in range(14):
            prompt = draw.choices(range(VOCAB), k=draw.choice([4, 12, 13, 20]))
            if draw.random() < 0.5 and number:
                earlier = draw.choice(list(yard.specs.values())).prompt_token_ids
                prompt = [*earlier[:12], *prompt][:24]
            stops = tuple(draw.sample(range(VOCAB), draw.choice([0, 5])))
            width = draw.choice([1, 2, 3, 5])
            options = {"stop_token_ids": stops} if width > 1 else {}
            yard.submit(f"r{number}", prompt, width, max_tokens=draw.randint(1, 16), **options)
            for _ in range(draw.randint(0, 4)):
                yard.plan() if draw.random() < 0.3 else yard.step()
            name = draw.choice(list(yard.specs))
            if draw.random() < 0.15 and not {name} & (unwanted | yard.ended.keys()):
                assert yard.scheduler.abort(name)
                unwanted.add(name)
            elif draw.random() < 0.3 and yard.specs[name].sampling.searches:
                yard.scheduler.abort(name, 1)  # the best one is wanted whatever comes
            yard.scheduler.check()
        yard.finish()
        assert yard.specs.keys() - yard.ended.keys() == unwanted


def test_a_prompt_that_is_known_is_not_computed_again(make_yard: Make, prompt_of: Make) -> None:
    yard = make_yard()
    yard.submit("a", prompt_of(21), 3, max_tokens=5)
    yard.finish()
    before = yard.computed
    yard.submit("b", prompt_of(21), 3, max_tokens=7)
    yard.finish()
    assert yard.ended["b"][0].cached_tokens == 20
    assert yard.computed - before == 1 + 3 * 6
