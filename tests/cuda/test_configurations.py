"""Every configuration of the table compiles for every architecture, within its registers."""

import os
import random
import re

import pytest
import torch

from blockyard.cuda.compiler import CompileError, Compiler, Cubin, compile_all, default_cache_dir
from blockyard.cuda.configurations import ARCHS, Configuration, configurations
from blockyard.cuda.decode import decode_build
from blockyard.cuda.sources import Build

TABLE = configurations()
SOURCES = sorted({each.build.source for each in TABLE})


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


def check(chosen: list[Configuration], arch: str) -> list[str]:
    """Compile in as many processes as there are cores; all objections."""
    builds = [each.build for each in chosen]
    processes = min(len(os.sched_getaffinity(0)), len(builds))
    found = compile_all(builds, arch, default_cache_dir(), processes)
    return [
        text for each, cubin in zip(chosen, found, strict=True) for text in objections(each, cubin)
    ]


def test_the_table_is_of_bounded_size_and_names_nothing_twice() -> None:
    assert len({each.build for each in TABLE}) == len(TABLE) <= 250


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.usefixtures("nvrtc")
def test_every_configuration_compiles(source: str, arch: str) -> None:
    chosen = [each for each in TABLE if each.build.source == source and arch in each.archs]
    if not chosen:
        pytest.skip(f"{source} has no instructions of sm_{arch}")
    assert check(chosen, arch) == []


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
    chance = random.Random(20)
    dtypes = (torch.bfloat16, torch.float16)
    found: list[str] = []
    for _ in range(8):
        dtype = chance.choice(dtypes)
        build = decode_build(
            dtype,
            chance.choice((dtype, torch.float8_e4m3fn)),
            chance.choice((64, 80, 96, 128, 256)),
            chance.randint(1, 16),
            chance.choice((8, 16, 32, 64)),
            soft_cap=chance.random() < 0.5,
        )
        each = Configuration(build, {"decode_attention": 255, "merge_partials": 64})
        arch = chance.choice(ARCHS)
        found += objections(each, Compiler(arch, default_cache_dir()).compile(build))
    assert found == []


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
    (compiled,) = compile_all([each.build], "90", default_cache_dir(), 1)
    (text,) = objections(each, compiled)
    assert re.search(objection, text)


@pytest.mark.usefixtures("nvrtc")
def test_a_cubin_for_hopper_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    """CuPy itself asks for sm_90 on Hopper, under which its own instructions do not assemble."""
    build = Build.of("decode.cu", **dict(TABLE[0].build.defines))
    compiled = Compiler("90a", default_cache_dir()).compile(build)
    assert b"sm_90a" in compiled.path.read_bytes()
