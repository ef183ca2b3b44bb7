"""Masks of grammars: the same tokens as the library's own word for each, whoever computed them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from llguidance import LLMatcher
from tokenizers import Tokenizer

from blockyard.workers.grammar import (
    GrammarCompiler,
    GrammarState,
    apply_masks,
    grammars_of,
    prepare_masks,
)
from blockyard.workers.witness_files import write_witness_files

WIDTH = 259
"""Bytes and three control tokens: not a whole number of words."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("witness")
    write_witness_files(made)
    return made


@pytest.fixture(scope="module")
def compiler(folder: Path) -> GrammarCompiler:
    found = grammars_of(folder, WIDTH)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def spell(folder: Path) -> Callable[[str], list[int]]:
    """Tokens of a text's bytes, in order of their ids."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: sorted(tokenizer.encode(text).ids)


def _allowed(state: GrammarState) -> list[int]:
    scores = torch.zeros(1, WIDTH)
    apply_masks(scores, {0: state})
    found: list[int] = torch.nonzero(torch.isfinite(scores[0])).flatten().tolist()
    return found


def test_masks_go_to_their_rows_and_others_stay(
    compiler: GrammarCompiler, spell: Callable[[str], list[int]]
) -> None:
    digits = compiler.begin(LLMatcher.grammar_from_regex("[0-9]+x"), [])
    letters = compiler.begin(LLMatcher.grammar_from_regex("[a-c]y"), [])
    scores = torch.randn(4, WIDTH)
    before = scores.clone()
    prepare_masks([digits, letters])
    apply_masks(scores, {1: letters, 3: digits})
    assert torch.equal(scores[[0, 2]], before[[0, 2]])
    kept = [np.flatnonzero(row).tolist() for row in torch.isfinite(scores[[1, 3]]).numpy()]
    assert kept == [spell("abc"), spell("0123456789")]
    assert torch.equal(scores[1, kept[0]], before[1, kept[0]])


def test_a_mask_follows_its_tokens_prepared_or_not(
    compiler: GrammarCompiler, spell: Callable[[str], list[int]]
) -> None:
    state = compiler.begin(LLMatcher.grammar_from_regex("a[bc]d"), [])
    assert _allowed(state) == spell("a")
    state.record(spell("a"))
    prepare_masks([state, state])
    other = state.copy()
    assert _allowed(state) == _allowed(other) == spell("bc")
    other.record(spell("b"))
    assert _allowed(other) == spell("d")
    assert _allowed(state) == spell("bc"), "a copy goes its own way"


def test_what_cannot_be_goes_nowhere(
    compiler: GrammarCompiler, spell: Callable[[str], list[int]]
) -> None:
    state = compiler.begin(LLMatcher.grammar_from_regex("ab"), [])
    state.record(spell("z"))
    assert _allowed(state) == []


def test_a_grammar_is_read_once_and_begun_anew_each_time(
    compiler: GrammarCompiler, spell: Callable[[str], list[int]]
) -> None:
    grammar = LLMatcher.grammar_from_regex("ab")
    first = compiler.begin(grammar, spell("a"))
    assert _allowed(first) == spell("b")
    assert _allowed(compiler.begin(grammar, [])) == spell("a")
    for number in range(200):
        compiler.begin(LLMatcher.grammar_from_regex(f"{number}"), [])
    assert len(compiler._kept) <= 128
