"""A draft model guesses for a real model: the same tokens as without, in blocks that hold both."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.scheduler.config import PreemptionPolicy
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.worker import ModelWorker

Make = Callable[..., ModelWorker]
Serve = Callable[..., Any]


@pytest.mark.parametrize(
    ("blocks", "host_blocks", "policy", "kv_dtype"),
    [
        (64, 0, PreemptionPolicy.AUTO, "auto"),
        (9, 0, PreemptionPolicy.RECOMPUTE, "auto"),
        (9, 14, PreemptionPolicy.SWAP, "int8"),
    ],
)
def test_whoever_guesses_every_token_is_the_same(
    make_worker: Make,
    serve: Serve,
    tiny_dir: Path,
    other_dir: Path,
    blocks: int,
    host_blocks: int,
    policy: PreemptionPolicy,
    kv_dtype: str,
) -> None:
    """The model itself guesses nearly all of its tokens, a stranger next to none."""
    pools = blocks, host_blocks
    plain, itself, stranger = [
        serve(make_worker(draft, *pools, kv_dtype=kv_dtype), *pools, policy)
        for draft in (None, tiny_dir, other_dir)
    ]
    for served in (itself, stranger):
        assert served.tokens == plain.tokens
        for member, scores in plain.scores.items():
            assert served.scores[member] == pytest.approx(scores, abs=1e-4)
        assert served.steps["guesses"] and served.steps["copies"] and served.steps["forks"]
        assert bool(served.books.preemptions) is (blocks < 64)
        assert bool(served.steps["swaps"]) is bool(host_blocks)
        assert served.books.prefix_hit_tokens
    assert itself.books.right_guesses > 0.95 * itself.books.guessed_tokens
    assert itself.books.step < 0.5 * plain.books.step
    assert stranger.books.right_guesses < 0.3 * stranger.books.guessed_tokens
    few, many = stranger.books.guessed_tokens, itself.books.guessed_tokens
    assert few < 0.5 * many, "where guesses fail there are few"


def test_guesses_keep_to_the_rules_of_their_request(
    make_worker: Make, serve: Serve, tiny_dir: Path
) -> None:
    """Each token makes itself less likely, and there are few: a guess decides what follows it."""
    strict = SamplingParams(
        max_tokens=60, temperature=0.0, frequency_penalty=2.0, allowed_token_ids=tuple(range(6))
    )
    (spec,) = specs = [RequestSpec("a", tuple(range(40, 60)), strict)]
    served = serve(make_worker(tiny_dir), specs=specs)
    assert served.tokens == serve(make_worker(None), specs=specs).tokens
    assert len(served.tokens[spec.request_id, 0]) == 60
    assert served.books.right_guesses > 0.95 * served.books.guessed_tokens > 30


@pytest.mark.parametrize("host_blocks", [0, 14])
def test_every_block_holds_what_both_models_have_computed(
    make_worker: Make, serve: Serve, tiny_dir: Path, host_blocks: int
) -> None:
    """A model that guesses for itself has the same keys and values twice, step after step."""
    worker = make_worker(tiny_dir, 9, host_blocks)
    cache = worker._cache
    assert cache is not None and cache.beside is not None
    own, beside = cache.blocks, cache.beside.blocks
    compared = 0

    def compare(scheduler: Scheduler) -> None:
        nonlocal compared
        for request in scheduler.batch.running:
            for index, block_id in enumerate(request.table.block_ids):
                slots = min(16, max(0, request.num_computed - 16 * index))
                one, other = own[block_id, ..., :slots, :], beside[block_id, ..., :slots, :]
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
                compared += slots

    policy = PreemptionPolicy.SWAP if host_blocks else PreemptionPolicy.RECOMPUTE
    served = serve(worker, 9, host_blocks, policy, compare)
    assert compared > 1000 and served.books.preemptions and served.steps["copies"]
