"""Three hundred answers of the default model, each kept to one of thirty JSON schemas."""

from pathlib import Path

import pytest

import blockyard
from blockyard.cluster.benchmark.load_endpoint import Answer, Outcome
from blockyard.cluster.benchmark.load_requests import of_json_tasks
from blockyard.cluster.benchmark.structured_load import is_valid
from blockyard.protos import generation_pb2 as pb


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("speculate", ["off", "ngram"])
def test_every_answer_fits_its_schema(default_model_dir: Path, speculate: str) -> None:
    """Greedy ones and, every third, one drawn at random; with guesses checked or without."""
    tasks = of_json_tasks(300 if speculate == "off" else 60)
    prompts = [[{"role": "user", "content": str(task.prompt)}] for task in tasks]
    settings = [
        blockyard.Settings(
            max_tokens=task.max_tokens,
            temperature=0.0 if number % 3 else 1.0,
            seed=number,
            structure=pb.Structure(json_schema=task.schema),
        )
        for number, task in enumerate(tasks)
    ]
    with blockyard.LLM(
        str(default_model_dir),
        device="cpu",
        num_blocks=1500,
        max_running=16,
        speculate="ngram" if speculate == "ngram" else "off",
    ) as llm:
        answers = llm.generate(prompts, settings)
    for task, answer in zip(tasks, answers, strict=True):
        assert answer.finish_reason == pb.FINISH_REASON_STOP, answer.text
        outcome = Outcome(task, 0.0, answer=Answer(answer.text, None, True))
        assert is_valid(outcome), (task.schema, answer.text)
