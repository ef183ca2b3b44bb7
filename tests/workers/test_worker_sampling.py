"""Penalties and scored prompts on a model, against transformers: whole, chunked, preempted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaForCausalLM

from blockyard.scheduler.plan import StepResult
from blockyard.scheduler.sampling import SamplingParams, TokenLogprobs

PROMPT = [5, 17, 200, 3, 88, 41, 41, 7, 260, 11, 9, 150, 33, 5, 17, 200, 3, 99, 61, 62, 63, 64]
PROMPT += [240, 13, 87, 55, 6, 31, 201, 19, 45, 77, 8]  # 33 tokens, blocks of 16


def _generated(model: LlamaForCausalLM, prompt: list[int], count: int, **options: Any) -> list[int]:
    make_config: Any = GenerationConfig
    config = make_config(
        max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0, **options
    )
    generate: Any = model.generate
    output = generate(torch.tensor([prompt]), generation_config=config)
    return [int(token) for token in output[0, len(prompt) :]]


def test_repetition_penalty_is_that_of_transformers_even_when_preempted(
    make_scheduler: Callable[..., Any], tiny_llama: LlamaForCausalLM
) -> None:
    prompt = [token for token in PROMPT if token != 2]
    expected = _generated(tiny_llama, prompt, 12, repetition_penalty=1.8, bad_words_ids=[[2]])
    assert expected != _generated(tiny_llama, prompt, 12, bad_words_ids=[[2]])
    scheduler = make_scheduler(64)
    sampling = SamplingParams(temperature=0.0, repetition_penalty=1.8, bad_words=((2,),))
    scheduler.add("a", prompt, sampling)
    scheduler.add("plain", prompt[:9])
    while len(scheduler.output("a")) < 12:
        scheduler.run(a=8, plain=1 if len(scheduler.output("plain")) else 9)
        if len(scheduler.output("a")) == 5 and scheduler.pending("a") == 1:
            scheduler.preempt("a")  # what it has produced is computed anew, as if it were prompt
            scheduler.run(a=20)
    assert scheduler.output("a") == expected


@pytest.fixture
def scores(tiny_llama: LlamaForCausalLM) -> torch.Tensor:
    with torch.inference_mode():
        logits = tiny_llama(input_ids=torch.tensor([PROMPT]), use_cache=False).logits
    scores: torch.Tensor = logits[0].log_softmax(-1)
    return scores


def _scored(results: list[StepResult], handle: int) -> list[TokenLogprobs]:
    """Entries of a prompt in order, with no gap and nothing twice."""
    entries: list[TokenLogprobs] = []
    for result in results:
        for part in result.prompt_logprobs:
            if part.handle == handle:
                assert part.position == len(entries) + 1
                entries.extend(part.entries)
    return entries


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_prompts_are_scored_in_any_chunks(
    make_scheduler: Callable[..., Any], scores: torch.Tensor, top: int
) -> None:
    scheduler = make_scheduler(64)
    scheduler.add("other", PROMPT[3:30])
    scheduler.add("a", PROMPT, SamplingParams(temperature=0.0, prompt_logprobs=top, logprobs=top))
    results = [scheduler.run(other=5, a=8) for _ in range(5)]
    entries = _scored(results, handle=2)
    assert len(entries) == len(PROMPT) - 1
    for position, entry in enumerate(entries):
        row = scores[position]
        assert abs(entry.logprob - row[PROMPT[position + 1]]) < 1e-4
        assert entry.rank == int((row > row[PROMPT[position + 1]]).sum()) + 1
        assert entry.top_ids == tuple(row.topk(top).indices.tolist())
        torch.testing.assert_close(
            torch.tensor(entry.top_logprobs), row.topk(top).values, atol=1e-4, rtol=0
        )
    chosen = results[-1].logprobs[-1]
    assert chosen is not None
    assert abs(chosen.logprob - scores[-1].max()) < 1e-4
