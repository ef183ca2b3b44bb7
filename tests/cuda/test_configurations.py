"""Every configuration of the table compiles for every architecture, within its registers."""

import os
import random
import re

import pytest
import torch

from blockyard.cuda.cache_write import cache_write_build
from blockyard.cuda.compiler import CompileError, Compiler, Cubin, compile_all, default_cache_dir
from blockyard.cuda.configurations import ARCHS, Configuration, configurations
from blockyard.cuda.decode import cascade_build, decode_build
from blockyard.cuda.fused_layers import MOST_WIDTH, layers_build
from blockyard.cuda.prefill import prefill_build
from blockyard.cuda.sources import Build

TABLE = configurations()
SOURCES = sorted({each.build.source for each in TABLE})
SLOWEST_FIRST = ["prefill.cu", "decode.cu", "cascade.cu", "layers.cu", "cache_write.cu", *SOURCES]


def objections(configuration: Configuration, compiled: Cubin | CompileError) -> list[str]:
    """What is wrong with a compiled configuration."""
    if isinstance(compiled, CompileError):
        return [str(compiled)]
    if set(compiled.resources) != set(configuration.registers):
        return [f"{configuration.build}: kernels {sorted(compiled.resources)}"]
    return [
        f"{configuration.build}: {name} takes {found}, allowed are {most} registers and no stack"
        for name, most in configuration.registers.items()
        if (found := compiled.resources[name]).registers > most
        or found.stack_bytes
        or found.spill_store_bytes
        or found.spill_load_bytes
    ]


def check(jobs: list[tuple[Configuration, str]]) -> list[str]:
    """Compile in as many processes as there are cores; all objections."""
    processes = len(os.sched_getaffinity(0))
    # What takes longest comes first, so that no process is left alone with it.
    jobs = sorted(jobs, key=lambda job: SLOWEST_FIRST.index(job[0].build.source))
    found = compile_all([(each.build, arch) for each, arch in jobs], default_cache_dir(), processes)
    return [
        f"sm_{arch}: {text}"
        for (each, arch), cubin in zip(jobs, found, strict=True)
        for text in objections(each, cubin)
    ]


def on_demand(seed: int, each: int) -> list[tuple[Configuration, str]]:
    """So many combinations of every kernel that the table need not have, each for one arch."""
    chance = random.Random(seed)
    jobs = []
    for _ in range(each):
        dtype = chance.choice((torch.bfloat16, torch.float16))
        kv_dtype = chance.choice((dtype, torch.float8_e4m3fn))
        dim, block_size = 16 * chance.randint(1, 16), chance.choice((8, 16, 32, 64))
        capped = chance.random() < 0.5
        decode = decode_build(dtype, kv_dtype, dim, chance.randint(1, 16), block_size, capped)
        prefill = prefill_build(dtype, kv_dtype, dim, chance.randint(1, 32), block_size, capped)
        width = 8 * chance.randint(1, MOST_WIDTH // 8)
        layers = layers_build(dtype, chance.choice((dtype, torch.float32)), width)
        allowed = {
            decode: {"decode_attention": 255, "merge_partials": 64},
            cascade_build(decode): {"attend_shared_prefix": 255},
            prefill: {"prefill_attention": 255, "merge_tiles": 64},
            cache_write_build(dtype, kv_dtype, dim, block_size): dict.fromkeys(
                ("rotate_and_write", "write_cache"), 128
            ),
            layers: dict.fromkeys(("rms_norm", "silu_and_multiply", "gelu_and_multiply"), 128),
        }
        jobs += [
            (Configuration(build, most), chance.choice(ARCHS)) for build, most in allowed.items()
        ]
    return jobs


def test_the_table_is_of_bounded_size_and_names_nothing_twice() -> None:
    assert len({each.build for each in TABLE}) == len(TABLE) <= 250


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.usefixtures("nvrtc")
def test_every_configuration_compiles(arch: str) -> None:
    assert check([(each, arch) for each in TABLE if arch in each.archs]) == []


@pytest.mark.usefixtures("nvrtc")
def test_one_of_each_source_compiles() -> None:
    chosen = [next(each for each in TABLE if each.build.source == source) for source in SOURCES]
    for each in chosen:
        compiled = Compiler(each.archs[0], default_cache_dir()).compile(each.build)
        assert objections(each, compiled) == []


@pytest.mark.slow
@pytest.mark.usefixtures("nvrtc")
def test_combinations_outside_the_table_compile() -> None:
    """A sample of what is built on demand; the seed is fixed so that a failure can be repeated."""
    jobs = on_demand(seed=20, each=4)
    assert {job.build.source for job, _ in jobs} == {
        *("cache_write.cu", "cascade.cu", "decode.cu", "layers.cu", "prefill.cu")
    }, "the others have no parameters but a dtype of the table"
    assert check(jobs) == []


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(
    ("defines", "objection"),
    [
        # Three blocks of 128 threads leave too few registers for rows of 256 numbers.
        ({"MIN_BLOCKS": 4}, "bytes=[1-9]"),
        ({"HEAD_DIM": 40}, "static assertion"),
    ],
)
def test_a_planted_spill_and_a_wrong_shape_are_objected_to(
    defines: dict[str, int], objection: str
) -> None:
    build = decode_build(torch.bfloat16, torch.bfloat16, 256, 8, 16, soft_cap=False)
    each = Configuration(
        build.with_defines(**defines), {"decode_attention": 255, "merge_partials": 64}
    )
    (compiled,) = compile_all([(each.build, "90")], default_cache_dir(), 1)
    (text,) = objections(each, compiled)
    assert re.search(objection, text)


@pytest.mark.usefixtures("nvrtc")
def test_a_cubin_for_hopper_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    """CuPy itself asks for sm_90 on Hopper, under which its own instructions do not assemble."""
    build = Build.of("decode.cu", **dict(TABLE[0].build.defines))
    compiled = Compiler("90a", default_cache_dir()).compile(build)
    assert b"sm_90a" in compiled.path.read_bytes()
