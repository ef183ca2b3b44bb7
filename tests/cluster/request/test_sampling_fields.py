"""Sampling fields: what an engine gets, and which field a refusal names."""

import math
from dataclasses import replace
from typing import Any

import pytest

from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.sampling_fields import check_served, resolve_sampling
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.description import ModelDescription, SamplingDefaults


@pytest.fixture
def resolve(description: ModelDescription, tokenizer: ModelTokenizer) -> Any:
    def resolve(**fields: Any) -> SamplingParams:
        sampling = pb.SamplingParameters(**fields)
        check_served(sampling)
        return resolve_sampling(sampling, description, tokenizer)

    return resolve


def test_defaults_change_nothing(resolve: Any) -> None:
    params = resolve(seed=5)
    assert params == SamplingParams(seed=5, stop_token_ids=(0, 2))
    assert not params.reads_history


def test_what_the_makers_advise_holds_where_nothing_is_said(
    description: ModelDescription, tokenizer: ModelTokenizer
) -> None:
    advice = SamplingDefaults(0.6, 0.95, 20, 0.05, 1.1)
    advised = replace(description, sampling=advice)
    own = pb.SamplingParameters(fallback_temperature=0.0)
    params = resolve_sampling(own, advised, tokenizer)
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.95, 20)
    assert (params.min_p, params.repetition_penalty) == (0.05, 1.1)
    own = pb.SamplingParameters(
        temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0
    )
    params = resolve_sampling(own, advised, tokenizer)
    assert (params.temperature, params.top_p, params.top_k) == (0.0, 1.0, 0)
    assert (params.min_p, params.repetition_penalty) == (0.0, 1.0)


def test_the_fallback_is_for_models_without_advice(resolve: Any) -> None:
    assert resolve(fallback_temperature=0.25).temperature == 0.25
    assert resolve(fallback_temperature=0.25, temperature=0.5).temperature == 0.5


def test_fields_reach_the_engine(resolve: Any, tokenizer: ModelTokenizer) -> None:
    params = resolve(
        min_p=0.1,
        typical_p=0.5,
        frequency_penalty=-2.0,
        presence_penalty=2.0,
        repetition_penalty=1.5,
        logit_bias={7: -100.0, 3: 1.5},
        allowed_token_ids=[3, 7, 3],
        stop_token_ids=[9, 0],
        bad_words=["fox"],
        logprobs=0,
        prompt_logprobs=20,
    )
    assert (params.min_p, params.typical_p) == (0.1, 0.5)
    assert (params.frequency_penalty, params.presence_penalty) == (-2.0, 2.0)
    assert params.repetition_penalty == 1.5
    assert params.logit_bias == ((3, 1.5), (7, -100.0))
    assert params.allowed_token_ids == (3, 7)
    assert params.stop_token_ids == (0, 2, 9)
    assert (params.logprobs, params.prompt_logprobs) == (0, 20)
    assert sorted(tokenizer.decode(word) for word in params.bad_words) == [" fox", "fox"]


def test_named_stop_tokens_hold_when_the_models_own_do_not(resolve: Any) -> None:
    assert resolve(ignore_eos=True, stop_token_ids=[9]).stop_token_ids == (9,)


def test_zero_temperature_and_as_many_as_there_are(resolve: Any, tokenizer: ModelTokenizer) -> None:
    assert resolve(temperature=1e-9).greedy
    assert resolve(temperature=1e-5).greedy
    assert not resolve(temperature=1e-4).greedy
    assert resolve(top_k=tokenizer.vocab_size + 1).top_k == 0


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"min_p": -0.1}, "min_p", "from 0 to 1"),
        ({"min_p": math.nan}, "min_p", "nan"),
        ({"typical_p": 0.0}, "typical_p", "above 0"),
        ({"frequency_penalty": 2.1}, "frequency_penalty", "from -2 to 2"),
        ({"presence_penalty": -math.inf}, "presence_penalty", "inf"),
        ({"repetition_penalty": 0.0}, "repetition_penalty", "above 0"),
        ({"logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "from 0 to 20"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias[-1]", "is -1"),
        ({"logit_bias": {5000: 1.0}}, "logit_bias[5000]", "token ids are 0 to"),
        ({"logit_bias": {3: 101.0}}, "logit_bias[3]", "101.0"),
        ({"logit_bias": {3: math.nan}}, "logit_bias[3]", "nan"),
        ({"allowed_token_ids": [1, 2**31 - 1]}, "allowed_token_ids[1]", "2147483647"),
        ({"stop_token_ids": [-5]}, "stop_token_ids[0]", "is -5"),
        ({"stop_token_ids": range(3, 90)}, "stop_token_ids", "at most 64"),
        ({"bad_words": ["ok", "  "]}, "bad_words[1]", "spaces alone"),
        ({"bad_words": ["x" * 300]}, "bad_words[0]", "300"),
        ({"bad_words": ["q" * 100]}, "bad_words[0]", "tokens; at most 32"),
        ({"bad_words": ["x"] * 65}, "bad_words", "at most 64"),
    ],
)
def test_refusals_name_the_field(
    resolve: Any, fields: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ApiError) as refused:
        resolve(**fields)
    assert refused.value.code is ApiCode.INVALID_ARGUMENT
    assert refused.value.field == f"sampling.{field}"
    assert words in refused.value.message


def test_a_search_takes_no_advice_of_how_to_sample(resolve: Any) -> None:
    check_served(pb.SamplingParameters(beam_width=1))
    found = resolve(beam_width=3, n=2, max_tokens=9, stop_token_ids=[7], logprobs=1)
    assert (found.beam_width, found.length_penalty, found.early_stopping) == (3, 1.0, False)
    assert found.greedy and found.top_p == 1.0 and found.top_k == 0 and found.logprobs == 1
    assert found.num_tops == 3 + len(found.stop_token_ids)
    assert resolve(beam_width=2, length_penalty=0.5, early_stopping=True).early_stopping


def test_ids_that_only_the_padded_vocabulary_has(
    description: ModelDescription, tokenizer: ModelTokenizer
) -> None:
    padded = replace(description, vocab_size=tokenizer.vocab_size + 64)
    last = tokenizer.vocab_size - 1  # an added token
    accepted = pb.SamplingParameters(stop_token_ids=[last], logit_bias={last: 1.0})
    assert last in resolve_sampling(accepted, padded, tokenizer).stop_token_ids
    for refused in (
        pb.SamplingParameters(stop_token_ids=[last + 1]),
        pb.SamplingParameters(allowed_token_ids=[last + 1]),
    ):
        with pytest.raises(ApiError):
            resolve_sampling(refused, padded, tokenizer)
