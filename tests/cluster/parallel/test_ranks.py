"""A model divided over real processes gives the tokens of one rank, and of transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from blockyard.scheduler.config import PreemptionPolicy, Speculation
from blockyard.workers.catalog import DEFAULT_MODEL, default_cache_dir

SMOLLM2 = default_cache_dir() / DEFAULT_MODEL
PROMPTS = [[5, 35, 28, 46], list(range(100, 190)), [28, 29]]
NEW_TOKENS = 12

Serve = Callable[..., Any]
Expected = Callable[[list[list[int]], int], list[list[int]]]


@pytest.fixture(scope="module")
def llama(save_model: Callable[[Any], Path]) -> Path:
    """3 KV heads of 3 query heads each, 100 columns and 301 rows: nothing divides evenly."""
    return save_model(
        LlamaConfig(
            vocab_size=301,
            hidden_size=72,
            intermediate_size=100,
            num_hidden_layers=2,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            eos_token_id=None,
        )
    )


@pytest.fixture(scope="module")
def expected(llama: Path) -> Callable[[list[list[int]], int], list[list[int]]]:
    """What transformers alone continues prompts with."""
    model: Any = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)

    def generate(prompts: list[list[int]], count: int) -> list[list[int]]:
        answers = []
        for prompt in prompts:
            output = model.generate(
                torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0
            )
            answers.append(output[0, len(prompt) :].tolist())
        return answers

    return generate


@pytest.mark.parametrize(
    ("ranks", "heads"),
    [(2, [2, 1]), (3, [1, 1, 1]), pytest.param(4, [1] * 4, marks=pytest.mark.slow)],
)
def test_uneven_ranks_give_the_same_tokens(
    serve: Serve, llama: Path, expected: Expected, ranks: int, heads: list[int]
) -> None:
    served = serve(llama, PROMPTS, ranks=ranks, new_tokens=NEW_TOKENS)
    assert served.tokens == expected(PROMPTS, NEW_TOKENS)
    head_bytes = 2 * 2 * 8 * 16 * 4  # keys and values, layers, head size, slots, float32
    assert [profile.block_bytes for profile in served.profiles] == [n * head_bytes for n in heads]


@pytest.mark.parametrize("num_blocks", [64, 16])
def test_guesses_are_checked_on_every_rank(
    serve: Serve, llama: Path, expected: Expected, num_blocks: int
) -> None:
    """Also where ranks that sample nothing must write over what was wrong, and under pressure."""
    prompts = [[7, 8, 9, 10] * 6, [50, 60] * 9, list(range(100, 130))]
    served = serve(
        llama,
        prompts,
        ranks=2,
        new_tokens=90,
        num_blocks=num_blocks,
        speculate=Speculation.NGRAM,
    )
    assert served.tokens == expected(prompts, 90)
    assert served.ledger.guessed_tokens > served.ledger.right_guesses > 0


@pytest.mark.parametrize("policy", [PreemptionPolicy.SWAP, PreemptionPolicy.RECOMPUTE])
def test_ranks_guess_together(
    serve: Serve, llama: Path, expected: Expected, policy: PreemptionPolicy
) -> None:
    """Each has its part of the draft model, here the model itself, and of all blocks."""
    prompts = [[7, 8, 9, 10] * 6, [50, 60] * 9, list(range(100, 130))]
    served = serve(
        llama,
        prompts,
        ranks=2,
        new_tokens=60,
        num_blocks=12,
        policy=policy,
        speculate=Speculation.DRAFT,
        draft_dir=str(llama),
    )
    assert served.tokens == expected(prompts, 60)
    ledger = served.ledger
    assert ledger.preemptions and ledger.right_guesses > 0.95 * ledger.guessed_tokens > 60
    assert ledger.step < 60


def test_swapped_blocks_come_back_on_every_rank(
    serve: Serve, llama: Path, expected: Expected
) -> None:
    prompts = [list(range(start, start + 20)) for start in (10, 50, 90)]
    # Each grows to 4 blocks, and there are 8.
    served = serve(
        llama, prompts, ranks=2, new_tokens=40, num_blocks=8, policy=PreemptionPolicy.SWAP
    )
    assert served.tokens == expected(prompts, 40)
    assert served.ledger.preempted.swapped > 0


def test_ranks_tell_one_another_what_a_plan_does_not_know_yet(
    serve: Serve, llama: Path, expected: Expected
) -> None:
    served = serve(llama, PROMPTS, ranks=2, new_tokens=NEW_TOKENS, depth=2)
    assert served.tokens == expected(PROMPTS, NEW_TOKENS)


def test_ranks_on_two_machines_speak_by_gloo(serve: Serve, llama: Path, expected: Expected) -> None:
    served = serve(llama, PROMPTS, ranks=2, new_tokens=NEW_TOKENS, machines=["here", "there"])
    assert served.tokens == expected(PROMPTS, NEW_TOKENS)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not (SMOLLM2 / "config.json").exists(), reason="the default model is not fetched here"
)
def test_the_default_model_on_one_to_four_ranks(serve: Serve) -> None:
    prompts = [[504, 3575, 282, 4649, 314], list(range(1000, 1090)), [28, 29]]
    alone = serve(SMOLLM2, prompts, ranks=1, new_tokens=24)
    token_bytes = sum(profile.block_bytes for profile in alone.profiles)
    for ranks in (2, 3, 4):
        served = serve(SMOLLM2, prompts, ranks=ranks, new_tokens=24)
        assert served.tokens == alone.tokens, ranks
        if ranks < 4:  # four ranks share three KV heads, so one is held twice
            assert sum(profile.block_bytes for profile in served.profiles) == token_bytes
        # The embedding is the head as well, and a rank has its part of it once.
        whole = alone.profiles[0].weight_bytes
        assert max(profile.weight_bytes for profile in served.profiles) < 1.04 * whole / ranks


@pytest.mark.parametrize("storage", ["bf16", "int8", "int4"])
def test_ranks_keep_their_weights_in_fewer_bits(
    serve: Serve, save_model: Callable[[Any], Path], storage: str
) -> None:
    """Heads and columns fall on whole groups of 32, so two ranks have the numbers of one."""
    directory = save_model(
        LlamaConfig(
            vocab_size=300,
            hidden_size=96,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            eos_token_id=None,
        )
    )
    plain = serve(directory, PROMPTS, ranks=2, new_tokens=4)
    whole = serve(directory, PROMPTS, ranks=1, new_tokens=NEW_TOKENS, weights=storage)
    halves = serve(directory, PROMPTS, ranks=2, new_tokens=NEW_TOKENS, weights=storage)
    assert halves.tokens == whole.tokens
    for small, large in zip(halves.profiles, plain.profiles, strict=True):
        assert small.weight_bytes < 0.7 * large.weight_bytes


@pytest.mark.parametrize("ranks", [1, 2])
def test_int8_blocks_are_swapped_shared_and_found_again(
    serve: Serve, llama: Path, ranks: int
) -> None:
    """Under pressure the tokens are those of each prompt alone with room to spare."""
    long = [(17 * n + 3) % 301 for n in range(50)]
    prompts = [long, [*long[:40], 7, 8], [*long[:34], 11], [5, 6, 7]]
    calm = [
        serve(llama, [prompt], ranks=ranks, new_tokens=40, kv_dtype="int8") for prompt in prompts
    ]
    pressed = serve(
        llama,
        prompts,
        ranks=ranks,
        new_tokens=40,
        num_blocks=8,
        max_step_tokens=24,
        policy=PreemptionPolicy.SWAP,
        first_alone=True,
        kv_dtype="int8",
    )
    assert pressed.tokens == [tokens for served in calm for tokens in served.tokens]
    assert pressed.ledger.preempted.swapped > 0
    assert pressed.ledger.prefix_hit_tokens > 0
    # Keys and values of 2 layers and 3 heads of 8, with a scale, 16 slots.
    assert sum(profile.block_bytes for profile in pressed.profiles) == 2 * 2 * 3 * (8 + 4) * 16
