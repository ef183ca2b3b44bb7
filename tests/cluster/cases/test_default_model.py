"""A sample of the cases on the default model: forms, scores and penalties, all in one batch."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import blockyard
from blockyard.protos import generation_pb2 as pb

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"enum": ["France", "Japan", "Peru"]},
        "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
    },
    "required": ["city", "country", "population"],
    "additionalProperties": False,
}


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(1800)
def test_a_batch_of_every_kind(default_model_dir: Path) -> None:
    chat = [{"role": "user", "content": "Describe the capital of Japan as JSON."}]
    structure = pb.Structure(json_schema=json.dumps(SCHEMA))
    kinds = [
        *(
            blockyard.Settings(max_tokens=120, seed=n, temperature=t, structure=structure)
            for n, t in enumerate((0.0, 0.7, 1.0, 1.5))
        ),
        blockyard.Settings(max_tokens=24, temperature=0.0, logprobs=5, prompt_logprobs=1),
        blockyard.Settings(max_tokens=24, temperature=0.0, repetition_penalty=1.3, logprobs=0),
    ]
    with blockyard.LLM(str(default_model_dir), device="cpu", num_blocks=128) as llm:
        together = llm.generate([chat] * len(kinds), kinds)
        alone = [llm.generate([chat], kind)[0] for kind in (kinds[1], kinds[5])]
    for answer in together[:4]:
        assert answer.finish_reason == pb.FINISH_REASON_STOP
        jsonschema.validate(json.loads(answer.text), SCHEMA)
    assert [a.token_ids for a in alone] == [together[1].token_ids, together[5].token_ids]
    scored = together[4]
    (choice,) = scored.choices
    assert len(scored.prompt.logprobs) == scored.usage.prompt_tokens
    for entry in choice.logprobs:
        assert entry.rank == 1
        assert entry.top[0].token_id == entry.token_id
        assert [top.logprob for top in entry.top] == sorted(
            (top.logprob for top in entry.top), reverse=True
        )
    assert together[5].text != scored.text
