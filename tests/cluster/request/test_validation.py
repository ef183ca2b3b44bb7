import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.limits import text_limit_bytes
from blockyard.cluster.request.validation import PreparedRequest, prepare_request
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.workers.description import ModelDescription

Prepare = Callable[[pb.GenerateRequest], PreparedRequest]


@pytest.fixture
def prepare(description: ModelDescription, tokenizer: ModelTokenizer) -> Prepare:
    return lambda request: asyncio.run(prepare_request(request, description, tokenizer))


def request_with(**sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt="hello", sampling=pb.SamplingParameters(**sampling))


def refusal_of(prepare: Prepare, request: pb.GenerateRequest) -> ApiError:
    with pytest.raises(ApiError) as caught:
        prepare(request)
    assert caught.value.code is ApiCode.INVALID_ARGUMENT
    assert "/secret" not in str(caught.value)
    return caught.value


class TestResolving:
    def test_absent_fields_take_the_documented_defaults(self, prepare: Prepare) -> None:
        sampling = prepare(request_with()).spec.sampling
        assert sampling.max_tokens is None
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
        assert sampling.min_tokens == 0
        assert sampling.stop_token_ids == (0, 2)

    def test_given_fields_arrive(self, prepare: Prepare) -> None:
        given = dict(max_tokens=5, temperature=0.0, top_p=0.5, top_k=7, seed=2**64 - 1)
        prepared = prepare(request_with(**given, min_tokens=2, priority=-3, stop=["a", "b"], n=1))
        sampling = prepared.spec.sampling
        assert {name: getattr(sampling, name) for name in given} == given
        assert (sampling.min_tokens, prepared.spec.priority) == (2, -3)
        assert prepared.options.stops == ("a", "b")

    def test_a_seed_is_drawn_anew_for_each_request(self, prepare: Prepare) -> None:
        assert len({prepare(request_with()).spec.sampling.seed for _ in range(8)}) == 8

    def test_a_seed_of_zero_is_a_seed(self, prepare: Prepare) -> None:
        assert prepare(request_with(seed=0)).spec.sampling.seed == 0

    def test_ignoring_eos_leaves_no_stop_tokens(self, prepare: Prepare) -> None:
        assert prepare(request_with(ignore_eos=True)).spec.sampling.stop_token_ids == ()

    def test_more_candidates_than_tokens_are_all_of_them(
        self, prepare: Prepare, tokenizer: ModelTokenizer
    ) -> None:
        size = tokenizer.vocab_size
        assert prepare(request_with(top_k=size)).spec.sampling.top_k == 0
        assert prepare(request_with(top_k=2**40)).spec.sampling.top_k == 0
        assert prepare(request_with(top_k=size - 1)).spec.sampling.top_k == size - 1

    def test_equal_client_ids_become_different_requests(self, prepare: Prepare) -> None:
        request = pb.GenerateRequest(prompt="hello", request_id="mine")
        first, second = prepare(request), prepare(request)
        assert first.options.request_id == second.options.request_id == "mine"
        assert first.spec.request_id != second.spec.request_id

    def test_tokens_are_taken_as_they_are(self, prepare: Prepare) -> None:
        request = pb.GenerateRequest(tokens=pb.TokenIds(ids=[0, 5, 1, 2]))
        assert prepare(request).spec.prompt_token_ids == (0, 5, 1, 2)

    def test_the_whole_context_may_be_used(self, prepare: Prepare) -> None:
        request = pb.GenerateRequest(
            tokens=pb.TokenIds(ids=[5] * 100), sampling=pb.SamplingParameters(max_tokens=28)
        )
        assert prepare(request).spec.sampling.max_tokens == 28

    @pytest.mark.parametrize("name", ["max_tokens", "min_tokens"])
    def test_one_token_more_is_refused_with_the_numbers(self, prepare: Prepare, name: str) -> None:
        request = pb.GenerateRequest(tokens=pb.TokenIds(ids=[5] * 100))
        setattr(request.sampling, name, 29)
        error = refusal_of(prepare, request)
        assert error.field == f"sampling.{name}"
        for number in ("29", "128", "100", "28"):
            assert number in error.message


class TestRefusals:
    @pytest.mark.parametrize(
        ("sampling", "field", "words"),
        [
            (dict(temperature=math.nan), "sampling.temperature", "nan"),
            (dict(temperature=math.inf), "sampling.temperature", "inf"),
            (dict(temperature=-0.1), "sampling.temperature", "-0.1"),
            (dict(top_p=0.0), "sampling.top_p", "above 0"),
            (dict(top_p=1.5), "sampling.top_p", "1.5"),
            (dict(top_p=math.nan), "sampling.top_p", "nan"),
            (dict(top_k=-1), "sampling.top_k", "-1"),
            (dict(max_tokens=0), "sampling.max_tokens", "at least 1"),
            (dict(max_tokens=-5), "sampling.max_tokens", "-5"),
            (dict(max_tokens=2**31), "sampling.max_tokens", "128"),
            (dict(min_tokens=-1), "sampling.min_tokens", "-1"),
            (dict(min_tokens=3, max_tokens=2), "sampling.min_tokens", "above max_tokens"),
            (dict(min_tokens=500), "sampling.min_tokens", "500"),
            (dict(n=17), "sampling.n", "is 17; 1 to 16 answers"),
            (dict(n=0), "sampling.n", "is 0; 1 to 16 answers"),
            (dict(n=-1), "sampling.n", "is -1; 1 to 16 answers"),
            (dict(tenant="a/b"), "sampling.tenant", "letters, digits"),
            (dict(stop=["x"] * 1000), "sampling.stop", "1,000"),
            (dict(stop=["ok", ""]), "sampling.stop[1]", "0 characters"),
            (dict(stop=["x" * 257]), "sampling.stop[0]", "257"),
        ],
    )
    def test_sampling(
        self, prepare: Prepare, sampling: dict[str, Any], field: str, words: str
    ) -> None:
        error = refusal_of(prepare, request_with(**sampling))
        assert error.field == field
        assert words in error.message

    @pytest.mark.parametrize(
        ("request_", "field", "words"),
        [
            (pb.GenerateRequest(), "prompt", "is missing"),
            (pb.GenerateRequest(prompt=""), "prompt", "is empty"),
            (pb.GenerateRequest(prompt="é " * 500), "prompt", "context holds 128"),
            (pb.GenerateRequest(prompt="x" * 5_000_000), "prompt", "5,000,000 bytes"),
            (pb.GenerateRequest(tokens=pb.TokenIds()), "tokens.ids", "is empty"),
            (pb.GenerateRequest(tokens=pb.TokenIds(ids=[5] * 128)), "tokens.ids", "128 tokens"),
            (pb.GenerateRequest(tokens=pb.TokenIds(ids=[5, -1])), "tokens.ids[1]", "is -1"),
            (pb.GenerateRequest(tokens=pb.TokenIds(ids=[9999])), "tokens.ids[0]", "9999"),
            (pb.GenerateRequest(chat=pb.ChatMessages()), "chat.messages", "is empty"),
            (pb.GenerateRequest(prompt="a", request_id="a b"), "request_id", "letters"),
            (pb.GenerateRequest(prompt="a", request_id="a" * 129), "request_id", "129"),
            (pb.GenerateRequest(prompt="a", request_id="a\n"), "request_id", "letters"),
        ],
    )
    def test_inputs(
        self, prepare: Prepare, request_: pb.GenerateRequest, field: str, words: str
    ) -> None:
        error = refusal_of(prepare, request_)
        assert error.field == field
        assert words in error.message

    @pytest.mark.parametrize(
        ("messages", "field", "words"),
        [
            ([("user", "a"), ("<|im_start|>", "b")], "chat.messages[1].role", "a word"),
            ([("", "a")], "chat.messages[0].role", "a word"),
            ([("user", "a"), ("system", "b")], "chat.messages", "must come first"),
            ([("user", "x" * 3_000_000)] * 2, "chat.messages", "6,000,000 bytes"),
            ([("user", "")] * 128, "chat.messages", "128 messages"),
        ],
    )
    def test_chats(
        self, prepare: Prepare, messages: list[tuple[str, str]], field: str, words: str
    ) -> None:
        chat = pb.ChatMessages(
            messages=[pb.ChatMessage(role=role, content=content) for role, content in messages]
        )
        error = refusal_of(prepare, pb.GenerateRequest(chat=chat))
        assert error.field == field
        assert words in error.message

    @pytest.mark.parametrize("where", ["request", "sampling", "tokens"])
    def test_fields_of_a_newer_client_are_not_ignored(self, prepare: Prepare, where: str) -> None:
        unknown = b"\xa2\x06\x03abc"  # field 100, three bytes
        request = request_with()
        if where == "tokens":
            request.tokens.ids.append(5)
            request.tokens.MergeFromString(unknown)
        else:
            (request if where == "request" else request.sampling).MergeFromString(unknown)
        error = refusal_of(prepare, request)
        assert (error.field, "100" in error.message) == (where, True)

    def test_rows_of_the_embedding_that_no_token_has_are_refused(
        self, description: ModelDescription, tokenizer: ModelTokenizer
    ) -> None:
        padded = replace(description, vocab_size=tokenizer.vocab_size + 50)
        last = tokenizer.vocab_size - 1
        asyncio.run(
            prepare_request(pb.GenerateRequest(tokens=pb.TokenIds(ids=[last])), padded, tokenizer)
        )
        with pytest.raises(ApiError, match=rf"tokens.ids\[0\].*0 to {last}"):
            asyncio.run(
                prepare_request(
                    pb.GenerateRequest(tokens=pb.TokenIds(ids=[last + 1])), padded, tokenizer
                )
            )


SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 130),
        "temperature": st.floats(),
        "top_p": st.floats() | st.floats(0, 1),
        "top_k": st.integers(-(2**63), 2**63 - 1),
        "seed": st.integers(0, 2**64 - 1),
        "min_tokens": st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 130),
        "stop": st.lists(st.text(max_size=3), max_size=18),
        "ignore_eos": st.booleans(),
        "n": st.integers(-1, 18),
        "priority": st.integers(-(2**31), 2**31 - 1),
    },
)
INPUTS = st.one_of(
    st.builds(lambda text: {"prompt": text}, st.text(max_size=40)),
    st.builds(
        lambda ids: {"tokens": pb.TokenIds(ids=ids)},
        st.lists(st.integers(-1, 400), max_size=140) | st.lists(st.integers(0, 9), max_size=5),
    ),
    st.builds(
        lambda pairs: {
            "chat": pb.ChatMessages(
                messages=[pb.ChatMessage(role=role, content=text) for role, text in pairs]
            )
        },
        st.lists(
            st.tuples(
                st.sampled_from(["user", "system", "assistant", "a b"]),
                st.text(max_size=20) | st.sampled_from(["<|im_end|>", "\ue0000:0\ue001"]),
            ),
            max_size=4,
        ),
    ),
)


class TestAnything:
    @given(inputs=INPUTS, sampling=SAMPLING)
    @settings(max_examples=300, deadline=None)
    def test_a_request_is_refused_by_field_or_can_be_served(
        self,
        description: ModelDescription,
        tokenizer: ModelTokenizer,
        inputs: dict[str, Any],
        sampling: dict[str, Any],
    ) -> None:
        request = pb.GenerateRequest(**inputs, sampling=pb.SamplingParameters(**sampling))
        # Values are as good after a journey as before.
        request = pb.GenerateRequest.FromString(request.SerializeToString())
        try:
            spec = asyncio.run(prepare_request(request, description, tokenizer)).spec
        except ApiError as error:
            assert error.code is ApiCode.INVALID_ARGUMENT
            assert error.field and error.message
            return
        prompt, wanted = spec.prompt_token_ids, spec.sampling.max_tokens or 1
        assert 1 <= len(prompt) <= 128 - max(wanted, spec.sampling.min_tokens)
        assert all(0 <= token < tokenizer.vocab_size for token in prompt)
        assert math.isfinite(spec.sampling.temperature)


class TestLargeTexts:
    def test_a_text_that_cannot_fit_is_never_tokenised(
        self,
        description: ModelDescription,
        tokenizer: ModelTokenizer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(
            ModelTokenizer, "encode_prompt", lambda *_: pytest.fail("the text was tokenised")
        )
        text = "a" * (text_limit_bytes(description.context_tokens) + 1)
        with pytest.raises(ApiError, match="prompt: has"):
            asyncio.run(prepare_request(pb.GenerateRequest(prompt=text), description, tokenizer))

    @pytest.mark.parametrize(("size", "aside"), [(100, False), (9_000, True)])
    def test_long_work_leaves_the_event_loop(
        self,
        description: ModelDescription,
        tokenizer: ModelTokenizer,
        monkeypatch: pytest.MonkeyPatch,
        size: int,
        aside: bool,
    ) -> None:
        threads: list[int] = []

        def encode(_: ModelTokenizer, text: str) -> tuple[int, ...]:
            threads.append(threading.get_ident())
            return (5,)

        monkeypatch.setattr(ModelTokenizer, "encode_prompt", encode)
        asyncio.run(prepare_request(pb.GenerateRequest(prompt="a" * size), description, tokenizer))
        assert (threads != [threading.get_ident()]) is aside
