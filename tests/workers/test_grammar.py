"""Masks of grammars: the same tokens as the library's own word for each, whoever computed them."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from llguidance import LLMatcher
from tokenizers import Tokenizer

from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.catalog import DEFAULT_MODEL, default_cache_dir
from blockyard.workers.grammar import (
    GrammarCompiler,
    GrammarState,
    apply_masks,
    grammars_of,
    prepare_masks,
)
from blockyard.workers.logit_rules import rules_for
from blockyard.workers.sampler import SampleRow, grammars_ahead, sample
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


@pytest.mark.model
def test_what_is_allowed_is_what_the_mask_has() -> None:
    """With a vocabulary of words, where a text may be spelled in many ways."""
    folder = default_cache_dir() / DEFAULT_MODEL
    if not (folder / "tokenizer.json").exists():
        pytest.skip("the default model is not here; `blockyard model fetch` gets it")
    compiler = grammars_of(folder, 49152)
    assert compiler is not None
    schema = {
        "type": "object",
        "properties": {"quantity": {"type": "integer"}, "note": {"type": "string", "maxLength": 9}},
        "required": ["quantity", "note"],
        "additionalProperties": False,
    }
    draw = random.Random(4)
    state = compiler.begin(LLMatcher.grammar_from_json_schema(json.dumps(schema)), [])
    for _ in range(30):
        mask = np.unpackbits(state.copy().mask.view(np.uint8), bitorder="little")
        likely = np.flatnonzero(mask).tolist()
        for token in (*range(500), *draw.choices(range(49152), k=100), *draw.choices(likely, k=20)):
            assert state.allows(token) == bool(mask[token])
        state.record([draw.choice(likely)])


def test_a_token_is_chosen_first_and_then_shown_to_its_grammar(
    compiler: GrammarCompiler, spell: Callable[[str], list[int]]
) -> None:
    """Greedy, drawn from all, drawn from a few: the same as under the mask."""
    grammar = LLMatcher.grammar_from_regex("[ab]+")
    torch.manual_seed(3)
    logits = torch.randn(40, WIDTH)
    logits[::2, spell("ab")] += 9.0
    kinds = [
        SamplingParams(temperature=0.0, grammar=grammar),
        SamplingParams(seed=3, grammar=grammar),
        SamplingParams(seed=4, top_k=3, grammar=grammar),
    ]
    rows = []
    for place in range(40):
        sampling = kinds[place % 3]
        rules = rules_for(sampling, 1, (1,), WIDTH, torch.device("cpu"), compiler)
        rows.append(SampleRow(sampling, 1 + place, 0, rules))
    found = sample(logits, rows)
    assert not found.failed
    masked = logits.clone()
    apply_masks(masked, {at: compiler.begin(grammar, []) for at in range(40)})
    free = [replace(row, rules=None) for row in rows]
    assert found.token_ids == sample(masked, free).token_ids
    assert set(found.token_ids) == set(spell("ab"))
    assert len(grammars_ahead(rows, WIDTH, torch.device("cpu"))) == 13, "those of a few"
    assert len(grammars_ahead(rows, WIDTH, torch.device("meta"))) == 40
