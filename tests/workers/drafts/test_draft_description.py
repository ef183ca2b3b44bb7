"""Which models may guess for which, told by their files alone."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from blockyard.scheduler.config import Speculation
from blockyard.workers.catalog import SilentProgress
from blockyard.workers.config import WorkerKind
from blockyard.workers.description import ModelDescription
from blockyard.workers.draft_description import DraftRefused, check_draft, find_draft
from blockyard.workers.draft_options import check_speculation

Make = Callable[..., ModelDescription]
WORDS = {"a": 0, "b": 1, "c": 2, "d": 3}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def describe(
        name: str, vocabulary: object = None, size: int = 4, context: int = 512
    ) -> ModelDescription:
        folder = tmp_path / name
        folder.mkdir()
        if vocabulary is not None:
            told = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": 4, "content": name}]}
            (folder / "tokenizer.json").write_text(json.dumps(told))
        return ModelDescription(name, str(folder), "", context, size, ())

    return describe


def test_a_shorter_context_is_refused(make: Make) -> None:
    with pytest.raises(DraftRefused, match=r"small has a context of 256 tokens, large one of 512"):
        check_draft(make("large"), make("small", context=256))


def test_without_tokenizers_sizes_must_be_the_same(make: Make) -> None:
    large = make("large")
    check_draft(large, make("same"))
    check_draft(make("told", WORDS), make("untold"))
    with pytest.raises(DraftRefused, match=r"small has a vocabulary of 6 tokens, large one of 4"):
        check_draft(large, make("small", size=6))


def test_tokenizers_must_mean_the_same_but_for_control_tokens_and_filling(make: Make) -> None:
    large = make("large", WORDS, size=8)
    check_draft(large, make("same", WORDS, size=6))
    check_draft(large, make("pieces", [["a", -1.0], ["b", -2.0], ["c", -2.5], ["d", -3.0]]))
    swapped = make("swapped", WORDS | {"b": 2, "c": 1}, size=8)
    with pytest.raises(DraftRefused, match=r"other things by 2 of 4 tokens, .* 1: 'c' and 'b'"):
        check_draft(large, swapped)
    short = make("short", {"a": 0, "b": 1, "c": 2}, size=8)
    with pytest.raises(DraftRefused, match=r"by 1 of 4 tokens, .* 3: None and 'd'"):
        check_draft(large, short)
    check_draft(short, large)


def test_a_witness_guesses_for_a_witness_alone(make: Make, tmp_path: Path) -> None:
    model = make("model")
    for name, kind in (("witness", WorkerKind.MODEL), (model.directory, WorkerKind.WITNESS)):
        with pytest.raises(DraftRefused, match="a witness guesses for a witness alone"):
            find_draft(name, kind, model, SilentProgress(), tmp_path)
    witness = find_draft(
        "witness", WorkerKind.WITNESS, make("w", size=259, context=4096), SilentProgress(), tmp_path
    )
    assert (witness.name, witness.vocab_size) == ("witness", 259)


@pytest.mark.parametrize(
    ("speculate", "with_draft", "weights", "message"),
    [
        (Speculation.DRAFT, False, "auto", "without a draft model; name one"),
        (Speculation.NGRAM, True, "auto", "small is given and speculate is ngram"),
        (Speculation.OFF, True, "auto", "small is given and speculate is off"),
        (Speculation.NGRAM, False, "int4", "draft_weights is int4 without a draft model"),
    ],
)
def test_options_that_nothing_would_use_are_refused(
    make: Make, speculate: Speculation, with_draft: bool, weights: str, message: str
) -> None:
    draft = make("small") if with_draft else None
    with pytest.raises(ValueError, match=message):
        check_speculation(speculate, draft, weights)
    check_speculation(Speculation.DRAFT, draft or make("other"), "int4")
    check_speculation(Speculation.OFF, None, "auto")
