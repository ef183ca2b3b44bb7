"""O03, O24, O25: scored prompts, echo, max_tokens at the edge, and the last position."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

WAYS = ("grpc-stream", "grpc-unary", "http-stream", "http-whole")
PROMPT = [(37 * n + 11) % 256 for n in range(33)]


@pytest.fixture(scope="module")
def oracle(tiny_model: LlamaForCausalLM) -> torch.Tensor:
    with torch.inference_mode():
        logits = tiny_model(input_ids=torch.tensor([PROMPT]), use_cache=False).logits
    scores: torch.Tensor = logits[0].log_softmax(-1)
    return scores


@pytest.mark.parametrize("top", [0, 1, 5, 20])
async def test_o03_prompt_logprobs_meet_caching_and_chunking(
    make_rig: Any, way: str, oracle: torch.Tensor, top: int
) -> None:
    rig = await make_rig(step_tokens=8, running=4)
    await rig.ask(way, PROMPT, max_tokens=1)  # leaves its blocks to whoever may use them
    for _ in range(2):
        told = await rig.ask(
            way, PROMPT, max_tokens=1, prompt_logprobs=top, echo=True, temperature=0.0
        )
        assert told.prompt == PROMPT
        assert len(told.prompt_logprobs) == 33
        assert told.prompt_logprobs[0] is None
        for position in range(32):
            expected = float(oracle[position, PROMPT[position + 1]])
            assert abs(told.prompt_logprobs[position + 1] - expected) < 1e-4
        assert told.completion_tokens == 1
        assert told.texts[0].startswith(rig.tokenizer.decode(PROMPT))


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "field"),
    [
        (10, 0, "max_tokens"),
        (10, -1, "max_tokens"),
        (10, 2**31 - 1, "max_tokens"),
        (10, 247, "max_tokens"),
        (256, 1, "prompt"),
        (257, 1, "prompt"),
        (0, 1, "prompt"),
    ],
)
async def test_o24_what_cannot_fit_is_refused_with_both_numbers(
    rig: Any, refused: Any, prompt: int, max_tokens: int, field: str
) -> None:
    for way in WAYS:
        with pytest.raises(refused) as error:
            await rig.ask(way, [65] * prompt, max_tokens=max_tokens)
        assert error.value.code == "INVALID_ARGUMENT"
        assert error.value.field.replace("tokens.ids", "prompt") == field
        numbers = {247: ("246", "256", "10"), 256: ("256",), 257: ("257", "256")}
        key = max_tokens if max_tokens == 247 else prompt
        assert all(number in error.value.message for number in numbers.get(key, ()))
        assert (await rig.ask(way, [65], max_tokens=1)).completion_tokens == 1


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "made"), [(10, 1, 1), (10, 246, 246), (255, 1, 1)]
)
async def test_o24_exactly_as_many_as_asked_for(
    rig: Any, way: str, prompt: int, max_tokens: int, made: int
) -> None:
    told = await rig.ask(
        way, [65] * prompt, max_tokens=max_tokens, ignore_eos=True, echo=True, prompt_logprobs=0
    )
    assert (told.completion_tokens, told.reasons) == (made, ["length"])
    assert len(told.prompt_logprobs) == prompt


async def test_o24_missing_means_to_the_limit(rig: Any) -> None:
    for way in ("grpc-stream", "grpc-unary"):
        told = await rig.ask(way, [65] * 200, ignore_eos=True)
        assert (told.completion_tokens, told.reasons) == (56, ["length"])


@pytest.mark.parametrize(
    "rope", [{}, {"rope_type": "linear", "factor": 4.0}, {"rope_type": "yarn", "factor": 4.0}]
)
async def test_o25_the_limit_is_that_of_the_model_s_positions(
    make_rig: Any,
    refused: Any,
    tiny_dir: Path,
    tmp_path: Path,
    rope: dict[str, Any],
) -> None:
    """Up to the last of 128 positions answers are those of transformers; no limit is above."""
    folder = tmp_path / "short"
    shutil.copytree(tiny_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": 128}
    if rope:
        config["rope_parameters"] = {
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 32,
            **rope,
        }
    (folder / "config.json").write_text(json.dumps(config))
    rig = await make_rig(folder=folder)
    prompt = [(7 * n) % 250 for n in range(120)]
    told = await rig.ask("grpc-unary", prompt, ignore_eos=True, temperature=0.0, logprobs=0)
    assert (told.completion_tokens, told.reasons) == (8, ["length"])
    oracle = LlamaForCausalLM.from_pretrained(folder)
    oracle.train(False)
    with torch.inference_mode():
        made = oracle.generate(
            torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None
        )
    assert told.spelled == [[rig.tokenizer.spell(int(token)) for token in made[0, 120:]]]
    with pytest.raises(refused, match="at most 8 are left"):
        await rig.ask("http-whole", prompt, max_tokens=16)
    with pytest.raises(refused, match="the context holds 128"):
        await rig.ask("http-stream", [65] * 128, max_tokens=1)
