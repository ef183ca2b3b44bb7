"""Building native code: into a cache by content, once, and with a reason where it cannot be."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blockyard.workers.cpu import compiler
from blockyard.workers.cpu.compiler import (
    INSTRUCTION_SETS,
    INSTRUCTIONS_VARIABLE,
    InstructionSet,
    NativeUnavailable,
    build_library,
    choose_instructions,
    find_compiler,
)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    try:
        find_compiler()
    except NativeUnavailable as error:
        pytest.skip(str(error))
    try:
        choose_instructions()
    except NativeUnavailable as error:
        pytest.skip(str(error))
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "answer.hpp").write_text("constexpr int answer = 41;\n")
    write_library(folder, "answer")
    return folder


def write_library(folder: Path, returned: str) -> None:
    (folder / "library.cpp").write_text(
        '#include "answer.hpp"\n#pragma GCC visibility push(default)\n'
        f'extern "C" int ask() {{ return {returned}; }}\n'
    )


def ask(library: Path) -> int:
    answer = ctypes.CDLL(str(library)).ask()
    assert isinstance(answer, int)
    return answer


def test_a_library_is_built_once_and_again_when_a_header_changes(
    sources: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = build_library(cache, sources)
    assert ask(first) == 41
    built = first.stat().st_mtime_ns
    assert build_library(cache, sources) == first
    assert first.stat().st_mtime_ns == built
    (sources / "answer.hpp").write_text("constexpr int answer = 42;\n")
    second = build_library(cache, sources)
    assert (ask(first), ask(second)) == (41, 42)


def test_builders_at_the_same_time_get_one_library(sources: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        built = list(threads.map(lambda _: build_library(tmp_path / "cache", sources), range(4)))
    assert len(set(built)) == 1
    names = {path.name for path in (tmp_path / "cache").iterdir()}
    assert names == {"lock", built[0].name}


def test_a_source_that_cannot_be_built_is_named(sources: Path, tmp_path: Path) -> None:
    write_library(sources, "no_such_name")
    with pytest.raises(NativeUnavailable, match="no_such_name"):
        build_library(tmp_path / "cache", sources)
    assert not list((tmp_path / "cache").glob("*.so"))


def test_no_compiler_and_what_would_help(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NativeUnavailable, match="install one"):
        build_library(tmp_path / "cache", sources)


def test_what_a_compiler_has_built_serves_where_there_is_none(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build_library(tmp_path / "cache", sources)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build_library(tmp_path / "cache", sources) == built
    (sources / "answer.hpp").write_text("constexpr int answer = 43;\n")
    with pytest.raises(NativeUnavailable, match="install one"):
        build_library(tmp_path / "cache", sources)


def test_a_processor_without_the_instructions_is_refused(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "processor_features", lambda: frozenset({"avx2", "fma"}))
    with pytest.raises(NativeUnavailable, match="lacks f16c"):
        build_library(tmp_path / "cache", sources)


def test_the_fastest_instructions_that_the_processor_has_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.delenv(INSTRUCTIONS_VARIABLE, raising=False)
    for one in INSTRUCTION_SETS:
        monkeypatch.setattr(compiler, "processor_features", lambda one=one: one.features | {"sse"})
        assert choose_instructions() == one


def test_slower_instructions_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fastest, *_, slowest = INSTRUCTION_SETS
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(compiler, "processor_features", lambda: fastest.features)
    monkeypatch.setenv(INSTRUCTIONS_VARIABLE, slowest.name)
    assert choose_instructions() == slowest
    assert choose_instructions(fastest.name) == fastest
    monkeypatch.setenv(INSTRUCTIONS_VARIABLE, "sse9")
    with pytest.raises(NativeUnavailable, match=f"for sse9, but for {fastest.name}"):
        choose_instructions()


def test_what_was_asked_for_and_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(compiler, "processor_features", lambda: INSTRUCTION_SETS[-1].features)
    with pytest.raises(NativeUnavailable, match="lacks avx512bw"):
        choose_instructions("avx512")


def test_libraries_of_two_instruction_sets_lie_side_by_side(sources: Path, tmp_path: Path) -> None:
    write_library(sources, "sizeof(answer) + AVX512")
    (sources / "answer.hpp").write_text(
        "#ifdef __AVX512F__\n#define AVX512 1\n#else\n#define AVX512 0\n#endif\n"
        "constexpr int answer = 0;\n"
    )
    features = compiler.processor_features()
    here = [one for one in INSTRUCTION_SETS if features >= one.features]
    built = {one.name: build_library(tmp_path / "cache", sources, one) for one in here}
    assert len(set(built.values())) == len(here)
    for name, library in built.items():
        assert ask(library) == 4 + (name != "avx2")


def test_instructions_that_the_compiler_does_not_know_are_left_out(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = INSTRUCTION_SETS[INSTRUCTION_SETS.index(choose_instructions()) :]
    if len(here) == 1:
        pytest.skip("this processor has one instruction set")
    monkeypatch.setattr(compiler.Compiler, "knows", lambda _, one: one == here[1])
    built = build_library(tmp_path / "cache", sources)
    assert built == build_library(tmp_path / "cache", sources, here[1])


def test_a_compiler_is_asked_what_it_knows() -> None:
    try:
        found = find_compiler()
    except NativeUnavailable as error:
        pytest.skip(str(error))
    assert not found.knows(InstructionSet("future", frozenset({"no_such_thing"})))


def test_a_cache_that_cannot_be_written_is_named(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NativeUnavailable, match="file"):
        build_library(tmp_path / "file", sources)
