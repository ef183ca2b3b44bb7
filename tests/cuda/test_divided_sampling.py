"""Ranks choose over parts of a vocabulary by kernel, as one kernel chooses over all of it."""

from types import SimpleNamespace
from typing import Any

import torch

from blockyard.cuda.emulator.build import EmulatedLibrary
from blockyard.cuda.kernel_backend import KernelBackend
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.divided_sampling import sample_divided, sample_whole
from blockyard.workers.sampler import SampleRow


def test_parts_by_kernel(emulated: EmulatedLibrary) -> None:
    kernels = KernelBackend(emulated, torch.device("cpu"), 4).sampler
    temperatures = (0.0, 0.8, 1.3, 0.0)
    rows = tuple(
        SampleRow(SamplingParams(temperature=temperature, seed=seed), 9, 1)
        for seed, temperature in enumerate(temperatures)
    )
    logits = torch.randn(4, 150, generator=torch.Generator().manual_seed(1)) * 2
    logits[3] = -1.0
    logits[3, [70, 141]] = 1.0
    batch: Any = SimpleNamespace(sample_rows=rows, prompt_rows=(), sample_logits=None)
    expected, _ = sample_whole(logits, batch, rows, kernels)
    for width in (52, 76):  # a part begins with the first of four tokens
        padded = torch.nn.functional.pad(logits, (0, -150 % width))
        pieces = [padded[:, at : at + width] for at in range(0, padded.shape[1], width)]
        told: list[torch.Tensor] = []
        for rank in reversed(range(len(pieces))):

            def gather(
                tensor: torch.Tensor, rank: int = rank, told: list[torch.Tensor] = told
            ) -> torch.Tensor:
                told.insert(0, tensor)
                return torch.cat(told, dim=-1) if rank == 0 else tensor

            end: Any = SimpleNamespace(rank=rank, gather_columns=gather)
            found = sample_divided(pieces[rank], batch, rows, 150, end, kernels)
        assert found is not None
        assert found[0] == expected
    assert expected.token_ids[3] == 70
