"""Runs kernels in the emulation under a sanitizer; a script, for test_sanitizers.py.

    python sanitized_run.py --build SANITIZER KERNEL:FAULT ...
    python sanitized_run.py SANITIZER KERNEL:FAULT ...

Fault 0 is none. The first form compiles what the second runs, on all cores and without the
sanitizer. The second must have been started with the sanitizer's library preloaded; it loads every
kernel before it runs the first, because a sanitizer knows no lines of what is loaded after its
first report. What is run is announced on stderr, so that reports can be told apart.
"""

import os
import runpy
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from blockyard.cuda import cache_write
from blockyard.cuda.backend import LayerKV
from blockyard.cuda.block_copy import copy_blocks
from blockyard.cuda.compiler import default_cache_dir
from blockyard.cuda.decode import DecodeAttention, DecodeRows
from blockyard.cuda.emulator.build import EmulatedLibrary, Schedule
from blockyard.cuda.fused_layers import KernelLayers
from blockyard.cuda.launch import KernelLibrary
from blockyard.cuda.logprobs import score_tokens
from blockyard.cuda.penalties import RowPenalties, penalise
from blockyard.cuda.prefill import PrefillAttention, PrefillRows
from blockyard.cuda.sampling import RowSampling, choose_tokens
from blockyard.cuda.sources import Build

conftest = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
make_case, PlantedLibrary = conftest["_make_case"], conftest["PlantedLibrary"]


def decode(library: KernelLibrary) -> None:
    case = make_case([200, 37], heads=8)
    tokens = case.batch.counts.cumsum().astype("int32") - 1
    rows = DecodeRows(case.batch.lengths, tokens, case.batch.block_tables, 16)
    output = torch.empty_like(case.queries)
    DecodeAttention(library, rows, 4, torch.device("cpu")).attend(
        case.kv, case.queries, case.form, output
    )


def layers(library: KernelLibrary) -> None:
    both = torch.ones(3, 2 * 1032, dtype=torch.bfloat16)
    hidden = KernelLayers(library).silu_and_multiply(both)
    weight = torch.ones(hidden.shape[1], dtype=torch.bfloat16)
    KernelLayers(library).add_rms_norm(hidden, hidden, weight, 1e-6)


def prefill(library: KernelLibrary, warpgroups: bool = False) -> None:
    case = make_case([150, 37], [70, 5])
    batch = case.batch
    firsts = (batch.counts.cumsum() - batch.counts).astype("int32")
    rows = PrefillRows(batch.counts, batch.lengths, firsts, batch.block_tables, 16)
    output = torch.empty_like(case.queries)
    # Many slots, so that tiles are cut and merged too.
    step = PrefillAttention(library, rows, 64, torch.device("cpu"), warpgroups)
    step.attend(case.kv, case.queries, case.form, output)


def cascade(library: KernelLibrary) -> None:
    # 17 requests save 4096 tokens that 16 of them need not read again.
    case = make_case([260] * 17, heads=2, kv_heads=1, shared_blocks=16)
    batch = case.batch
    tokens = batch.counts.cumsum().astype("int32") - 1
    rows = DecodeRows(batch.lengths, tokens, batch.block_tables, 16, batch.host_tables)
    output = torch.empty_like(case.queries)
    DecodeAttention(library, rows, 4, torch.device("cpu")).attend(
        case.kv, case.queries, case.form, output
    )


def cache(library: KernelLibrary) -> None:
    kv = LayerKV(torch.zeros(2, 2, 1, 16, 64, dtype=torch.bfloat16))
    projected, turn = torch.ones(3, 3 * 64, dtype=torch.bfloat16), torch.zeros(3, 32)
    slots = torch.tensor([31, 0, 16])
    cache_write.rotate_and_write(library, kv, projected, turn, turn, 1, slots, 16)
    keys, values, _ = projected.view(3, 3, 1, 64).unbind(1)
    cache_write.write(library, kv, keys, values, slots, 16)


def sampling(library: KernelLibrary) -> None:
    rows = [RowSampling(1.0, top_k=3, top_p=0.9, min_p=0.01, seed=seed) for seed in range(2)]
    choose_tokens(library, torch.arange(1400.0).remainder(7).view(2, 700), rows)


def logprobs(library: KernelLibrary) -> None:
    score_tokens(library, torch.arange(1400.0).remainder(7).view(2, 700), [0, 1], [3, 699], [9, 0])


def penalties(library: KernelLibrary) -> None:
    seen, produced = torch.ones(2, 700, dtype=torch.bool), torch.ones(2, 700)
    rows = [RowPenalties(row, 1.5, 0.5, 0.5, seen[row], produced[row]) for row in range(2)]
    penalise(library, torch.ones(2, 700), rows)


def blocks(library: KernelLibrary) -> None:
    pool = torch.zeros(3, 24, dtype=torch.int16)
    copy_blocks(library, pool, pool, [(0, 2)])


SCENARIOS: dict[str, Callable[[KernelLibrary], None]] = {
    "blocks": blocks,
    "cache": cache,
    "cascade": cascade,
    "decode": decode,
    "layers": layers,
    "logprobs": logprobs,
    "penalties": penalties,
    "prefill": prefill,
    "warpgroups": partial(prefill, warpgroups=True),
    "sampling": sampling,
}


class _Unlaunched:
    """A kernel that does nothing."""

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments

    def __call__(self, *_: Any) -> None: ...


class _Collecting:
    """Notes which kernels are asked for."""

    def __init__(self) -> None:
        self.asked: dict[tuple[Build, str], None] = {}

    def kernel(self, build: Build, name: str) -> _Unlaunched:
        self.asked[build, name] = None
        return _Unlaunched(build.kernels[name])


def main() -> None:
    torch.set_num_threads(1)
    only_build = sys.argv[1] == "--build"
    sanitizer, *names = sys.argv[1 + only_build :]
    library = EmulatedLibrary(default_cache_dir() / "emulated", Schedule(seed=1), sanitizer)
    runs = [(run, *run.split(":")) for run in names]
    needed = _Collecting()
    for _, kernel, fault in runs:
        SCENARIOS[kernel](PlantedLibrary(needed, int(fault)))
    if only_build:
        first, *others = dict.fromkeys(build for build, _ in needed.asked)
        library.compile(first)  # and with it what all of them share
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(library.compile, others))
        return
    for build, name in needed.asked:
        library.kernel(build, name)
    for run, kernel, fault in runs:
        print(f"== {run}", file=sys.stderr, flush=True)
        SCENARIOS[kernel](PlantedLibrary(library, int(fault)))


if __name__ == "__main__":
    main()
