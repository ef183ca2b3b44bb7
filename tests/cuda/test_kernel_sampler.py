"""The workers' sampler and cache over kernels: the tokens and bytes that plain torch gives."""

import random
from typing import Any

import pytest
import torch

from blockyard.cuda.backend import TokenKernels
from blockyard.cuda.emulator.build import EmulatedLibrary
from blockyard.cuda.kernel_backend import KernelBackend
from blockyard.cuda.launch import KernelLibrary
from blockyard.scheduler.plan import BlockCopy
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.logit_rules import rules_for
from blockyard.workers.logprobs import token_logprobs
from blockyard.workers.sampler import SampledTokens, SampleRow, sample

CPU = torch.device("cpu")
VOCABULARY = 700


def kernels(library: KernelLibrary) -> TokenKernels:
    found = KernelBackend(library, CPU, slots=8).sampler
    assert found is not None
    return found


def some_rows(seed: int, count: int) -> list[SampleRow]:
    chance = random.Random(seed)

    def either(*values: Any) -> Any:
        return chance.choice(values)

    rows = []
    for _ in range(count):
        sampling = SamplingParams(
            temperature=either(0.0, 0.7, 1.0, 1.5),
            top_k=either(0, 0, 1, 7, 10**6),
            top_p=either(1.0, 1.0, 0.9, 0.3),
            min_p=either(0.0, 0.0, 0.05),
            typical_p=either(1.0, 1.0, 1.0, 0.8),
            seed=chance.getrandbits(64),
            choice=either(0, 3),
            frequency_penalty=either(0.0, 0.0, 0.7),
            presence_penalty=either(0.0, 0.0, -0.4),
            repetition_penalty=either(1.0, 1.0, 1.3),
            logit_bias=either((), ((5, 4.0), (6, -100.0))),
            logprobs=either(None, None, 0, 1, 20),
        )
        known = [chance.randrange(VOCABULARY) for _ in range(60)]
        rules = rules_for(sampling, 20, known, VOCABULARY, CPU)
        rows.append(SampleRow(sampling, chance.randrange(4000), 40, rules))
    return rows


def check(found: SampledTokens, expected: SampledTokens) -> None:
    assert found.token_ids == expected.token_ids
    assert (found.failed, found.emptied) == (expected.failed, expected.emptied)
    assert len(found.logprobs) == len(expected.logprobs)
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert (ours.rank, ours.top_ids) == (theirs.rank, theirs.top_ids)
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
            assert ours.top_logprobs == pytest.approx(theirs.top_logprobs, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_tokens_as_without_kernels(emulated: EmulatedLibrary, dtype: torch.dtype) -> None:
    count = 60
    logits = torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 3
    logits = logits.to(dtype)
    before = logits.clone()
    rows = some_rows(seed=4, count=count)
    assert any(row.sampling.typical_p < 1 and not row.sampling.greedy for row in rows)
    check(sample(logits, rows, kernels(emulated)), sample(logits, rows))
    assert torch.equal(logits, before)


def test_rows_without_a_token_are_told_apart(emulated: EmulatedLibrary) -> None:
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(5))
    logits[1], logits[2, 3] = float("-inf"), float("nan")
    for temperature in (0.0, 1.0):
        rows = [SampleRow(SamplingParams(temperature=temperature), 9, 0)] * 4
        found = sample(logits, rows, kernels(emulated))
        assert (found.failed, found.emptied) == ((1, 2), (1,))
        assert found.token_ids[0] == sample(logits, rows).token_ids[0]


def test_scores_of_a_prompt(emulated: EmulatedLibrary) -> None:
    logits = torch.randn(5, 12, generator=torch.Generator().manual_seed(6))
    rows, tokens = [1, 1, 4], [0, 11, 3]
    # More than there are is all.
    found = token_logprobs(logits, rows, tokens, [20, 0, 2], kernels(emulated))
    expected = token_logprobs(logits, rows, tokens, [12, 0, 2])
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.rank, ours.top_ids) == (theirs.rank, theirs.top_ids)
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)


GEOMETRY = KVGeometry(2, 2, 32, 16, torch.float16)


def moved(mover: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sides of a cache after two plans' moves."""
    extra = {} if mover is None else {"mover": mover}
    cache = KVCache(GEOMETRY, 9, CPU, 7, **extra)
    for blocks in (cache.blocks, cache.host_blocks):
        whole = torch.arange(blocks.numel()).remainder(2039).view(blocks.shape)
        blocks.copy_(whole + (1 if blocks is cache.blocks else 7))
    outs = [(3, 0), (1, 1), (2, 2), (8, 5)]
    cache.move(
        swap_outs=[BlockCopy(*pair) for pair in outs],
        copies=[BlockCopy(0, 3), BlockCopy(0, 4), BlockCopy(7, 8)],
        swap_ins=[BlockCopy(5, 1), BlockCopy(6, 2)],
    )
    cache.move(swap_ins=[BlockCopy(0, 6), BlockCopy(1, 5)])
    return cache.blocks, cache.host_blocks


def test_a_caches_moves_by_kernel_are_those_of_plain_copies(asked: Any) -> None:
    found = moved(KernelBackend(asked, CPU, slots=8).mover)
    assert all(torch.equal(*pair) for pair in zip(found, moved(None), strict=True))
    # The copies, and a gather or a spread for each run that is scattered on the device.
    assert set(asked.names) == {"copy_blocks"}
    assert len(asked.names) >= 3


def test_blocks_that_no_kernel_can_copy_are_left_to_plain_copies(
    emulated: EmulatedLibrary,
) -> None:
    backend = KernelBackend(emulated, CPU, slots=8)
    odd = torch.zeros(4, 12, dtype=torch.uint8)
    assert backend.mover(odd, odd) is None
    strided = torch.zeros(4, 48, dtype=torch.uint8)[:, :32]
    assert backend.mover(strided, strided) is None
