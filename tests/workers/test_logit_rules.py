"""What a request's own rules do to its scores, and the tokens they go by."""

from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.logit_rules import LogitRules, penalise, rules_for
from blockyard.workers.sampler import SampleRow, sample

CPU = torch.device("cpu")
WIDTH = 50


def _rules(known: list[int], prompt: int, **sampling: Any) -> LogitRules:
    rules = rules_for(SamplingParams(**sampling), prompt, known, WIDTH, CPU)
    assert rules is not None
    return rules


def _scores(seed: int = 0) -> torch.Tensor:
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))


def _long(tokens: list[list[int]]) -> Any:
    """Transformers' own types are narrower than torch's."""
    return torch.tensor(tokens)


def test_no_rules_where_nothing_is_asked() -> None:
    plain = SamplingParams(temperature=0.5, top_k=3, logprobs=5, prompt_logprobs=1)
    assert rules_for(plain, 2, [1, 2], WIDTH, CPU) is None


def test_bias_then_allowed_tokens() -> None:
    rules = _rules([1], 1, logit_bias=((3, 5.0), (4, -100.0)), allowed_token_ids=(3, 7))
    before = _scores()
    after = before.clone()
    rules.apply(after)
    assert after[3] == before[3] + 5.0
    assert after[7] == before[7]
    assert torch.isinf(after).sum() == WIDTH - 2


def test_penalties_are_those_of_the_textbook() -> None:
    prompt, output = [1, 2, 2, 3], [3, 4, 4, 4]
    rules = _rules(
        prompt + output, 4, repetition_penalty=1.7, frequency_penalty=0.5, presence_penalty=-0.25
    )
    before = _scores()[None]
    repeated = RepetitionPenaltyLogitsProcessor(1.7)(
        _long([prompt + output]),
        before.clone(),
    )
    expected = repeated.clone()
    expected[0, 3] -= 0.5 - 0.25
    expected[0, 4] -= 3 * 0.5 - 0.25
    torch.testing.assert_close(penalise(before, [rules]), expected)


@pytest.mark.parametrize("said", [[9], [5, 6], [1, 5, 6, 7], [8, 8]])
def test_bad_words_as_transformers_has_them(said: list[int]) -> None:
    words = ((6,), (5, 6, 11), (6, 7, 12), (1, 5, 6, 7, 13), (9, 14), (9, 15), (8, 8, 16))
    rules = _rules(said, 1, bad_words=words)
    before = _scores()
    after = before.clone()
    rules.apply(after)
    processor = NoBadWordsLogitsProcessor([list(word) for word in words], eos_token_id=-1)
    expected = LogitsProcessorList([processor])(
        _long([said]),
        before[None].clone(),
    )[0]
    assert torch.equal(after, expected)


def test_tokens_are_counted_once_however_they_come() -> None:
    """At admission, in chunks that repeat what was known, and one by one."""
    options = {"frequency_penalty": 1.0, "bad_words": ((4, 5, 6),)}
    tokens = [1, 2, 3, 4, 4, 4, 5]
    whole = _rules(tokens, 2, **options)
    pieces = _rules(tokens[:4], 2, **options)
    pieces.record(0, tokens[:3])
    pieces.record(3, tokens[3:6])
    pieces.record(6, tokens[6:])
    assert torch.equal(whole.produced, pieces.produced)
    assert whole.produced[4] == 3
    one, other = _scores(), _scores()
    whole.apply(one)
    pieces.apply(other)
    assert torch.equal(one, other)
    assert torch.isinf(one[6])


def test_a_fork_goes_its_own_way() -> None:
    parent = _rules([1, 2], 1, presence_penalty=1.0)
    child = parent.child(SamplingParams(presence_penalty=1.0, choice=1))
    parent.record(2, [3])
    child.record(2, [4])
    assert parent.produced.nonzero().flatten().tolist() == [2, 3]
    assert child.produced.nonzero().flatten().tolist() == [2, 4]
    assert torch.equal(parent.in_prompt, child.in_prompt)


def test_rules_hold_for_their_row_alone_and_leave_the_logits_as_they_were() -> None:
    logits = torch.stack([_scores(seed) for seed in range(4)])
    before = logits.clone()
    greedy: dict[str, Any] = {"temperature": 0.0}
    favoured = int(logits[1].argmin())
    ruled = [
        SampleRow(SamplingParams(**greedy), 3, 1),
        SampleRow(
            (params := SamplingParams(**greedy, logit_bias=((favoured, 100.0),))),
            3,
            1,
            rules_for(params, 2, [1, 2], WIDTH, CPU),
        ),
        SampleRow(
            (params := SamplingParams(**greedy, allowed_token_ids=(7,))),
            3,
            1,
            rules_for(params, 2, [1, 2], WIDTH, CPU),
        ),
        SampleRow(SamplingParams(**greedy), 3, 1),
    ]
    best = logits.argmax(dim=-1).tolist()
    assert sample(logits, ruled).token_ids == (best[0], favoured, 7, best[3])
    assert torch.equal(logits, before)


def test_row_whose_rules_leave_nothing_fails_alone() -> None:
    logits = torch.stack([_scores(seed) for seed in range(3)])
    params = SamplingParams(allowed_token_ids=(7,), bad_words=((7,),))
    rows = [
        SampleRow(SamplingParams(), 3, 1),
        SampleRow(params, 3, 1, rules_for(params, 2, [1, 2], WIDTH, CPU)),
        SampleRow(SamplingParams(temperature=0.0), 3, 1),
    ]
    result = sample(logits, rows)
    assert result.failed == result.emptied == (1,)
    alone = [sample(logits[i : i + 1], [rows[i]]).token_ids[0] for i in (0, 2)]
    assert [result.token_ids[0], result.token_ids[2]] == alone
