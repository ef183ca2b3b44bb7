"""What `blockyard bench kv` measures and prints."""

import json
import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from blockyard.cluster.benchmark.kv_quality import _compare
from blockyard.cluster.cli import app


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    words = {f"w{number}": number for number in range(60)}
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_each_kv_dtype_is_held_against_float32(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{number * 7 % 60}" for number in range(90)), encoding="utf-8")
    words = ["bench", "kv", "--model", str(model), "--text", str(text), "--threads", "1"]
    ran = CliRunner().invoke(app, [*words, "--json"])
    assert ran.exit_code == 0, ran.output
    bench = json.loads(ran.stdout)
    assert bench["tokens"] == 90
    kinds = {kind["kv_dtype"]: kind for kind in bench["kinds"]}
    assert list(kinds) == ["float32", "bfloat16", "int8", "fp8"]
    assert len({kind["perplexity"] for kind in bench["kinds"]}) == 4
    for name in ("bfloat16", "int8", "fp8"):
        loss = kinds[name]["perplexity"] / kinds["float32"]["perplexity"] - 1
        assert kinds[name]["loss"] == pytest.approx(loss, abs=1e-5)
        assert abs(loss) < (0.2 if name == "fp8" else 0.02)  # its weights are chance, and wide
        assert abs(loss) < 4 * kinds[name]["loss_error"]  # no more than chance moves it
    assert (kinds["float32"]["loss_error"], kinds["float32"]["divergence"]) == (0, 0)
    # Fewer bits foretell otherwise; int8 has a scale for each slot, fp8 three bits and one a head.
    apart = [kinds[name]["divergence"] for name in ("bfloat16", "int8", "fp8")]
    assert 0 < max(apart[:2]) * 4 < apart[2]
    told = CliRunner().invoke(app, words).stdout
    assert "90 tokens of text.txt" in told and "int8" in told


def test_a_text_of_nothing_is_refused(model: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("", encoding="utf-8")
    ran = CliRunner().invoke(app, ["bench", "kv", "--model", str(model), "--text", str(empty)])
    assert ran.exit_code == 2
    assert "needs at least 2" in ran.output


def test_a_change_is_told_with_its_error_and_how_far_apart_both_are() -> None:
    """Two tokens of two, by hand: one becomes likelier by as much as the other less likely."""
    exact = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
    other = torch.tensor([[0.25, 0.75], [0.25, 0.75]]).log()
    told = _compare("int8", other, exact, [0, 0, 1])
    worse = [math.log(2), math.log(2 / 3)]
    mean, apart = sum(worse) / 2, (worse[0] - worse[1]) / 2
    assert told.loss == pytest.approx(math.expm1(mean), abs=1e-6)
    assert told.loss_error == pytest.approx(apart / math.sqrt(2) * math.exp(mean), abs=1e-6)
    assert told.divergence == pytest.approx(mean, abs=1e-6)  # both are as likely
    assert told.perplexity == pytest.approx(2 * math.exp(mean), abs=1e-4)
