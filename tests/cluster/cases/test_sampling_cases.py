"""O19 to O23: log probabilities in place, seeds, masks, extremes, ids outside the vocabulary."""

import asyncio
import math
from typing import Any

import pytest

WAYS = ("grpc-stream", "grpc-unary", "http-stream", "http-whole")
PROMPT = [(53 * n + 7) % 256 for n in range(20)]


@pytest.mark.parametrize("stop", [(), ("~~never~~", "\x00\x01\x02\x03")])
async def test_o19_alternatives_belong_to_their_token(rig: Any, stop: tuple[str, ...]) -> None:
    fields = {"max_tokens": 12, "logprobs": 3, "seed": 5, "ignore_eos": True, "stop": list(stop)}
    told = {
        way: await rig.ask(way, PROMPT, **fields)
        for way in ("grpc-stream", "grpc-unary", "http-stream", "http-whole")
    }
    first = told["grpc-unary"]
    assert len(first.logprobs[0]) == first.completion_tokens == 12
    for way, answer in told.items():
        assert answer.spelled == first.spelled, way
        # The first way computes the whole prompt, the others what the cache lacks: sums of other
        # numbers of rows round otherwise.
        assert answer.logprobs[0] == pytest.approx(first.logprobs[0], abs=1e-4), way
        assert answer.texts == first.texts, way
        for own, tops in zip(answer.logprobs[0], answer.tops[0], strict=True):
            assert len(tops) in (3, 4)
            assert own in tops or own <= min(tops)


async def test_o20_choices_with_one_seed(rig: Any, way: str) -> None:
    fields = {
        "n": 4,
        "seed": 7,
        "temperature": 1.0,
        "max_tokens": 12,
        "ignore_eos": True,
        "logprobs": 0,
    }
    plain = await rig.ask(way, PROMPT, **fields)
    assert len({tuple(tokens) for tokens in plain.spelled}) == 4
    assert [len(tokens) for tokens in plain.spelled] == [12] * 4
    again = await rig.ask(way, PROMPT, **fields)
    assert (again.spelled, again.texts) == (plain.spelled, plain.texts)
    # One of them ends early; the others do not notice.
    text = rig.tokenizer.decode([])
    for index, choice in enumerate(plain.texts):
        marks = [
            c for c in choice[1:6] if c.isascii() and not any(c in o for o in plain.texts[:index])
        ]
        if marks:
            text = marks[0]
    if text:
        stopped = await rig.ask(way, PROMPT, **fields, stop=[text])
        for before, after in zip(plain.texts, stopped.texts, strict=True):
            assert after == before.split(text)[0]


async def test_o21_masks_in_a_mixed_batch(rig: Any, refused: Any) -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0, "logit_bias": dict.fromkeys(range(200), -100.0)},
        {"top_k": 1, "seed": 1},
        {"top_p": 1e-9, "seed": 2},
        {"min_p": 1.0, "seed": 3},
        {"temperature": 2.0, "seed": 4},
        {"allowed_token_ids": [5, 6, 7], "seed": 5},
    ]
    fields = {"max_tokens": 10, "ignore_eos": True, "logprobs": 0}

    def ask(kind: dict[str, Any]) -> Any:
        return rig.ask("grpc-unary", PROMPT, **fields, **kind)

    alone = [await ask(kind) for kind in kinds]
    (letter,) = rig.tokenizer.encode_text("a")
    masked = ask({"allowed_token_ids": [letter], "bad_words": ["a"]})
    together = await asyncio.gather(*map(ask, kinds), masked, return_exceptions=True)
    assert isinstance(together[-1], refused)
    assert together[-1].code == "INVALID_ARGUMENT"
    assert "no token is left" in together[-1].message
    for one, other in zip(alone, together[:-1], strict=True):
        assert not isinstance(other, BaseException)
        assert one.spelled == other.spelled
        assert all(math.isfinite(value) for value in other.logprobs[0])
    assert alone[1].spelled == alone[2].spelled == alone[3].spelled


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-5])
async def test_o22_below_epsilon_is_greedy(rig: Any, way: str, temperature: float) -> None:
    fields = {"max_tokens": 8, "ignore_eos": True, "logprobs": 0}
    greedy = await rig.ask(way, PROMPT, temperature=0.0, **fields)
    same = await rig.ask(way, PROMPT, temperature=temperature, seed=99, **fields)
    assert same.spelled == greedy.spelled


@pytest.mark.parametrize(
    "fields", [{"temperature": 1e-4}, {"temperature": 1e-2}, {"top_p": 1e-6}, {"top_k": 1}]
)
async def test_o22_tiny_values_take_the_likeliest(rig: Any, fields: dict[str, Any]) -> None:
    for way in WAYS:
        common = {"max_tokens": 8, "ignore_eos": True, "logprobs": 0, "seed": 4}
        greedy = await rig.ask(way, PROMPT, temperature=0.0, **common)
        assert (await rig.ask(way, PROMPT, **fields, **common)).spelled == greedy.spelled
        whole = [await rig.ask(way, PROMPT, top_k=k, **common) for k in (0, 259, 260)]
        assert whole[0].spelled == whole[1].spelled == whole[2].spelled


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("top_p", value) for value in (0.0, 1.5, -1.0, math.inf)),
        *(("temperature", value) for value in (-1e-9, math.nan)),
        ("top_k", -7),
        ("min_p", math.nan),
    ],
)
async def test_o22_out_of_range_names_the_field(
    rig: Any, refused: Any, name: str, value: float
) -> None:
    for way in WAYS:
        if way.startswith("http") and not math.isfinite(value):
            text = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
            body = f'{{"prompt": "x", "{name}": {text}}}'
            answer = await rig.web.post("/v1/completions", content=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body")
            continue
        with pytest.raises(refused) as error:
            await rig.ask(way, PROMPT, **{name: value}, max_tokens=1)
        assert (error.value.code, error.value.field) == ("INVALID_ARGUMENT", name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("logit_bias", {token: 1.0}) for token in (-1, 259, 264)),
        *(("stop_token_ids", [token]) for token in (-1, 259, 264)),
        *(("allowed_token_ids", [token]) for token in (-1, 259, 264)),
    ],
)
async def test_o23_ids_outside_the_vocabulary_harm_nobody(
    rig: Any, refused: Any, name: str, value: Any
) -> None:
    for way in WAYS:
        good = rig.ask("grpc-unary", PROMPT, max_tokens=30, ignore_eos=True, logprobs=0, seed=3)
        running = asyncio.create_task(good)
        with pytest.raises(refused) as error:
            await rig.ask(way, PROMPT, max_tokens=1, **{name: value})
        assert error.value.code == "INVALID_ARGUMENT"
        assert error.value.field.startswith(name)
        assert (await running).completion_tokens == 30


async def test_o23_added_tokens_below_the_true_size_are_accepted(rig: Any, way: str) -> None:
    told = await rig.ask(
        way, PROMPT, max_tokens=5, logit_bias={258: -100.0}, stop_token_ids=[257], seed=1
    )
    assert told.completion_tokens <= 5
