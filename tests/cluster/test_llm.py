"""`blockyard.LLM` and the clients: one model in this process gives a server's answers."""

import subprocess
import sys
from typing import Any

import pytest

import blockyard
from blockyard.cluster.client import build_request
from blockyard.cluster.request.api_error import ApiError
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason
from blockyard.workers.fake import witness_generate

WITNESS_VOCABULARY = 259


def test_many_prompts_have_their_answers_in_order() -> None:
    prompts = [[number % 256] * (1 + number % 7) for number in range(40)]
    settings = [blockyard.Settings(max_tokens=1 + n % 9, ignore_eos=True) for n in range(40)]
    with blockyard.LLM("witness", num_blocks=64, max_running=8) as llm:
        answers = llm.generate(prompts, settings)
        for prompt, each, answer in zip(prompts, settings, answers, strict=True):
            assert each.max_tokens is not None
            expected = witness_generate(prompt, each.max_tokens, WITNESS_VOCABULARY)
            assert list(answer.token_ids) == expected
        (text,) = llm.generate(["hello"], blockyard.Settings(max_tokens=3, echo=True))
        assert text.text.startswith("hello")
        (chat,) = llm.generate(
            [[{"role": "user", "content": "hello"}]], blockyard.Settings(max_tokens=3)
        )
        assert chat.usage.prompt_tokens > 5
        assert llm.generate([]) == []


def test_a_model_that_guesses_changes_no_answer() -> None:
    """A witness is guessed for by a witness, which is wrong now and then."""
    prompts = [[number] * (2 + number) for number in range(6)]
    settings = blockyard.Settings(max_tokens=60, ignore_eos=True)
    options: dict[str, Any] = {"num_blocks": 32, "max_running": 8}
    with blockyard.LLM("witness", speculate="draft", draft_model="witness", **options) as llm:
        for prompt, answer in zip(prompts, llm.generate(prompts, settings), strict=True):
            assert list(answer.token_ids) == witness_generate(prompt, 60, WITNESS_VOCABULARY)
        ledger = llm._dispatcher.engine.ledger()
        assert 0 < ledger.right_guesses < ledger.guessed_tokens
    with pytest.raises(ValueError, match="speculate is draft without a draft model"):
        blockyard.LLM("witness", speculate="draft", **options)
    with pytest.raises(ValueError, match="say speculate draft"):
        blockyard.LLM("witness", draft_model="witness", **options)


def test_a_mistake_gives_up_the_batch_and_nothing_else() -> None:
    with blockyard.LLM("witness", num_blocks=64) as llm:
        with pytest.raises(ApiError, match=r"sampling\.top_p"):
            llm.generate(
                [[1], [2]], [blockyard.Settings(max_tokens=900), blockyard.Settings(top_p=2.0)]
            )
        with pytest.raises(ValueError, match="argument 2 is shorter"):
            llm.generate([[1], [2]], [blockyard.Settings()])
        (answer,) = llm.generate([[1]], blockyard.Settings(max_tokens=2, ignore_eos=True))
        assert len(answer.token_ids) == 2
    llm.close()


def test_a_client_is_a_client_of_a_server(served_address: str, dispatcher: Any) -> None:
    dispatcher.script = [[65], FinishReason.STOP]
    with blockyard.Client(served_address, timeout_seconds=60) as client:
        answer = client.generate(build_request(prompt="a"))
        assert list(answer.token_ids) == [65]


def test_every_setting_finds_its_field() -> None:
    names = set(blockyard.Settings.__slots__)
    assert names == {field.name for field in pb.SamplingParameters.DESCRIPTOR.fields}
    settings = blockyard.Settings(
        logit_bias={3: 1.5},
        stop=("x",),
        stop_token_ids=(4,),
        logprobs=0,
        structure=pb.Structure(regex="a"),
    )
    sampling = build_request(prompt="a", settings=settings).sampling
    assert dict(sampling.logit_bias) == {3: 1.5}
    assert (list(sampling.stop), list(sampling.stop_token_ids)) == (["x"], [4])
    assert sampling.HasField("logprobs")
    assert sampling.structure.regex == "a"


def test_importing_blockyard_loads_nothing() -> None:
    code = (
        "import sys, blockyard; print(*[m for m in ('torch', 'grpc', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    with pytest.raises(AttributeError):
        blockyard.nothing  # noqa: B018 (reading it is the point)
