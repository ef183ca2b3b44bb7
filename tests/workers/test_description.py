"""What a model's own files say of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from blockyard.workers.description import SamplingDefaults, describe_model


@pytest.mark.parametrize(
    ("generation", "advice"),
    [
        (None, SamplingDefaults()),
        ({"eos_token_id": 3, "do_sample": True, "max_new_tokens": 9}, SamplingDefaults()),
        (
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1},
            SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1),
        ),
        ({"temperature": None, "top_k": 2.5, "top_p": "1", "min_p": True}, SamplingDefaults()),
    ],
)
def test_how_its_makers_advise_to_sample(
    tmp_path: Path, generation: dict[str, Any] | None, advice: SamplingDefaults
) -> None:
    config = {"max_position_embeddings": 8, "vocab_size": 4, "eos_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert describe_model(tmp_path, "small").sampling == advice
