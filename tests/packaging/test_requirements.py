"""Ranges in pyproject.toml, exact versions in constraints.txt and generated stubs agree."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import blockyard

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


def declared(*extras: str) -> list[Requirement]:
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][name] for name in extras)]
    found = [Requirement(text) for texts in lists for text in texts]
    return [requirement for requirement in found if requirement.name != "blockyard"]


def pinned() -> dict[str, Version]:
    pins = (line.split("==") for line in PINS if not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in pins}


def test_one_comment_then_plain_pins() -> None:
    assert PINS[0].startswith("#")
    assert [line for line in PINS[1:] if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert len(pinned()) == len(PINS) - 1


@pytest.mark.parametrize("requirement", declared("test", "dev"), ids=str)
def test_a_declared_range_has_a_pin_inside_it(requirement: Requirement) -> None:
    assert requirement.specifier, "declare the oldest version that works"
    assert pinned()[canonicalize_name(requirement.name)] in requirement.specifier


def needed_by(requirement: Requirement, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Distributions below a requirement, by what the installed ones declare."""
    name = canonicalize_name(requirement.name)
    yield name
    for extra in ("", *requirement.extras):
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in distribution(name).requires or ():
            below = Requirement(text)
            if below.marker is None or below.marker.evaluate({"extra": extra}):
                yield from needed_by(below, seen)


@pytest.mark.skipif("+cpu" not in distribution("torch").version, reason="pins are of the CPU build")
def test_all_that_is_needed_is_pinned() -> None:
    seen: set[tuple[str, str]] = set()
    needed = {name for requirement in declared("test") for name in needed_by(requirement, seen)}
    assert needed - set(pinned()) == set()


def test_stubs_ask_for_no_newer_library_than_is_declared() -> None:
    """Generated code refuses to load with a library older than its generator."""
    oldest = {
        requirement.name: min(Version(clause.version) for clause in requirement.specifier)
        for requirement in declared()
    }
    for stub in (ROOT / "protos").glob("*_pb2.py"):
        found = re.search(r"Protobuf Python Version: ([\d.]+)", stub.read_text(encoding="utf-8"))
        assert found is not None
        assert oldest["protobuf"] >= Version(found[1])
    for stub in (ROOT / "protos").glob("*_pb2_grpc.py"):
        found = re.search(r"GENERATED_VERSION = '([\d.]+)'", stub.read_text(encoding="utf-8"))
        assert found is not None
        assert oldest["grpcio"] >= Version(found[1])


def test_what_the_code_imports_is_declared() -> None:
    """A package that only comes along with another may be gone with the next version of that."""
    offered = packages_distributions()
    known = {
        canonicalize_name(requirement.name) for requirement in declared("gpu", "plot", "trace")
    }
    undeclared = set()
    for folder in ("scheduler", "workers", "cuda", "cluster", "protos"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module is not None:
                    names = [node.module]
                for top in {name.partition(".")[0] for name in names} - sys.stdlib_module_names:
                    brought_by = {canonicalize_name(name) for name in offered.get(top, [top])}
                    if top not in ("blockyard", "cupy", "cuda") and not brought_by & known:
                        undeclared.add(f"{file.relative_to(ROOT)}: {top} of {brought_by}")
    assert undeclared == set()


def test_the_version_is_said_once_to_users_and_once_to_installers() -> None:
    assert blockyard.__version__ == PROJECT["version"]
