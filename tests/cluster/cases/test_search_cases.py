"""Beam search through a whole server: the answers are those of transformers' own search."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

import blockyard
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.config import Speculation
from blockyard.workers.description import describe_model

END = 258
PROMPTS: list[str | list[int]] = [
    "The blocks of a beam",
    "aaaa",
    [7, 99, 12, 200, 31],
    list(range(30, 90)),
]
SETTINGS: list[dict[str, Any]] = [
    {"beam_width": 2, "n": 2},
    {"beam_width": 4, "n": 4, "stop_token_ids": list(range(0, 60, 3))},
    {"beam_width": 4, "n": 4, "stop_token_ids": list(range(0, 60, 3)), "early_stopping": True},
    {"beam_width": 3, "n": 3, "stop_token_ids": list(range(0, 120, 4)), "length_penalty": -1.5},
    {"beam_width": 3, "n": 3, "stop_token_ids": list(range(0, 120, 4)), "length_penalty": 2.0},
    {"beam_width": 8, "n": 5, "stop_token_ids": list(range(1, 90, 4)), "min_tokens": 5},
]


def by_transformers(
    model: Any, prompt: Sequence[int], most: int, ends: Sequence[int], fields: dict[str, Any]
) -> list[list[int]]:
    """What `generate` finds, each answer up to and with the token that ended it."""
    ids = torch.tensor([list(prompt)])
    stops = [*ends, *fields.get("stop_token_ids", ())]
    with torch.inference_mode():
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=fields["beam_width"],
            num_return_sequences=fields.get("n", 1),
            do_sample=False,
            max_new_tokens=most,
            min_new_tokens=fields.get("min_tokens"),
            length_penalty=fields.get("length_penalty", 1.0),
            early_stopping=fields.get("early_stopping", False),
            eos_token_id=stops,
            pad_token_id=ends[0],
        )
    answers = []
    for tokens in found[:, len(prompt) :].tolist():
        end = next((place for place, token in enumerate(tokens) if token in stops), most)
        answers.append(tokens[: end + 1])
    return answers


def encoded(rig: Any, prompt: str | list[int]) -> list[int]:
    return list(rig.tokenizer.encode_prompt(prompt)) if isinstance(prompt, str) else prompt


@pytest.mark.parametrize("fields", SETTINGS)
async def test_answers_are_those_of_transformers(
    fields: dict[str, Any], rig: Any, tiny_model: LlamaForCausalLM
) -> None:
    lengths = set()
    for prompt in PROMPTS:
        told = await rig.ask("grpc-unary", prompt, max_tokens=14, logprobs=0, **fields)
        found = by_transformers(tiny_model, encoded(rig, prompt), 14, [END], fields)
        assert told.spelled == [[rig.tokenizer.spell(t) for t in answer] for answer in found]
        assert told.completion_tokens == sum(map(len, found))
        lengths |= {len(answer) for answer in found}
    assert len(lengths) > 1 or SETTINGS.index(fields) in (0, 4, 5), "none has ended early"


async def test_every_way_gives_the_same(
    way: str, rig: Any, refused: Any, tiny_model: LlamaForCausalLM
) -> None:
    fields = {"stop_token_ids": list(range(0, 60, 3)), "max_tokens": 10, "logprobs": 2}
    found = by_transformers(
        tiny_model, encoded(rig, PROMPTS[0]), 10, [END], {**fields, "beam_width": 4, "n": 2}
    )
    if way.startswith("http"):
        fields |= {"use_beam_search": True, "best_of": 4}
    else:
        fields |= {"beam_width": 4}
    if way == "http-stream":
        with pytest.raises(refused) as refusal:
            await rig.ask(way, PROMPTS[0], n=2, **fields)
        assert refusal.value.field == "use_beam_search"
        return
    told = await rig.ask(way, PROMPTS[0], n=2, **fields)
    assert told.spelled == [[rig.tokenizer.spell(t) for t in answer] for answer in found]
    assert [len(tops) for tops in told.tops] == [len(answer) for answer in found]
    assert all(logprob <= 0 for answer in told.logprobs for logprob in answer)


@pytest.mark.parametrize("speculate", Speculation)
async def test_searches_meet_preemptions_prefixes_and_each_other(
    speculate: Speculation, make_rig: Any, tiny_model: LlamaForCausalLM
) -> None:
    rig = await make_rig(blocks=10, running=10, speculate=speculate)
    shared = [(7 * n) % 250 for n in range(40)]
    asked = [([*shared, n], SETTINGS[n % len(SETTINGS)]) for n in range(6)]
    plain = [
        rig.ask("grpc-unary", shared[n:], max_tokens=40, temperature=0.0, ignore_eos=True)
        for n in range(4)
    ]
    answers, others = await asyncio.gather(
        asyncio.gather(
            *(
                rig.ask("grpc-unary", prompt, max_tokens=24, logprobs=0, **fields)
                for prompt, fields in asked
            )
        ),
        asyncio.gather(*plain),
    )
    assert rig.dispatcher.engine.ledger().preemptions > 0
    for told, (prompt, fields) in zip(answers, asked, strict=True):
        found = by_transformers(tiny_model, prompt, 24, [END], fields)
        assert told.spelled == [[rig.tokenizer.spell(t) for t in answer] for answer in found]
    for number, told in enumerate(others):
        alone = await rig.ask(
            "grpc-unary", shared[number:], max_tokens=40, temperature=0.0, ignore_eos=True
        )
        assert told.spelled == alone.spelled
    for cached in (None, 32):
        again = await rig.ask("grpc-unary", [*shared, 0], max_tokens=24, logprobs=0, **SETTINGS[0])
        assert again.spelled == answers[0].spelled
        assert cached in (None, again.cached_tokens)


async def test_a_search_is_called_off_by_its_name(rig: Any) -> None:
    request = pb.GenerateRequest(
        prompt="hello",
        request_id="mine",
        sampling=pb.SamplingParameters(beam_width=4, n=3, max_tokens=200, ignore_eos=True),
    )
    answering = asyncio.create_task(rig.client.generate(request))
    async with asyncio.timeout(60):
        while not await rig.dispatcher.requests("", "mine", call_off=True):
            await asyncio.sleep(0.001)
        answer = await answering
    assert [choice.finish_reason for choice in answer.choices] == [pb.FINISH_REASON_ABORT] * 3
    assert not any(choice.token_ids for choice in answer.choices)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"beam_width": 17}, "beam_width"),
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 3, "n": 4}, "n"),
        ({"beam_width": 3, "temperature": 0.7}, "temperature"),
        ({"beam_width": 3, "top_p": 0.5}, "top_p"),
        ({"beam_width": 3, "top_k": 4}, "top_k"),
        ({"beam_width": 3, "repetition_penalty": 1.2}, "repetition_penalty"),
        ({"beam_width": 3, "stop": ["x"]}, "stop"),
        ({"beam_width": 3, "logit_bias": {3: 1.0}}, "logit_bias"),
        ({"beam_width": 3, "bad_words": ["x"]}, "bad_words"),
        ({"beam_width": 3, "best_of": 4}, "best_of"),
        ({"beam_width": 3, "length_penalty": 6.0}, "length_penalty"),
        ({"beam_width": 16, "stop_token_ids": list(range(60))}, "beam_width"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
    ],
)
async def test_what_no_search_does_is_refused_by_name(
    fields: dict[str, Any], field: str, rig: Any, refused: Any
) -> None:
    with pytest.raises(refused) as refusal:
        await rig.ask("grpc-unary", "x", **fields)
    assert refusal.value.field == field
    told = await rig.ask("grpc-unary", "x", beam_width=1, length_penalty=1.0, max_tokens=2)
    assert len(told.texts) == 1


async def test_a_search_in_http_needs_to_know_its_width(rig: Any, refused: Any) -> None:
    with pytest.raises(refused) as refusal:
        await rig.ask("http-whole", "x", use_beam_search=True, max_tokens=4)
    assert refusal.value.field == "use_beam_search"
    for wrong in ({"best_of": 17}, {"best_of": 16, "stop_token_ids": list(range(60))}):
        with pytest.raises(refused) as refusal:
            await rig.ask("http-whole", "x", use_beam_search=True, max_tokens=4, **wrong)
        assert refusal.value.field == "use_beam_search"
        assert "beam_width" not in refusal.value.message
    chat = await rig.web.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "hello"}],
            "use_beam_search": True,
            "n": 3,
            "max_tokens": 4,
            "length_penalty": 0.5,
        },
    )
    assert chat.status_code == 200, chat.text
    assert [choice["index"] for choice in chat.json()["choices"]] == [0, 1, 2]


def test_an_engine_in_this_process_searches_too(
    tiny_dir: Path, tiny_model: LlamaForCausalLM
) -> None:
    with blockyard.LLM(str(tiny_dir), device="cpu", dtype="float32", num_blocks=64) as llm:
        prompts = [[7, 99, 12], [5, 6, 7, 8]]
        answers = llm.generate(
            prompts, blockyard.Settings(beam_width=4, n=2, max_tokens=9), progress=False
        )
    for prompt, answer in zip(prompts, answers, strict=True):
        found = by_transformers(tiny_model, prompt, 9, [END], {"beam_width": 4, "n": 2})
        assert [list(choice.token_ids) for choice in answer.choices] == found


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(1800)
def test_the_default_model_searches_as_in_transformers(default_model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_model_dir)
    texts = ["The capital of France is", "Once upon a time", "def add(a, b):\n"]
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    fields: dict[str, Any] = {"beam_width": 4, "n": 2, "length_penalty": 0.8}
    with blockyard.LLM(str(default_model_dir), device="cpu", dtype="float32", num_blocks=96) as llm:
        answers = llm.generate(prompts, blockyard.Settings(max_tokens=24, **fields))
    model = AutoModelForCausalLM.from_pretrained(default_model_dir, dtype=torch.float32)
    ends = describe_model(default_model_dir, "default").eos_token_ids
    for prompt, answer in zip(prompts, answers, strict=True):
        found = by_transformers(model, prompt, 24, ends, fields)
        assert [list(choice.token_ids) for choice in answer.choices] == found
