"""The site builds without a warning, and each of its tables has what the code has."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def references() -> dict[str, Callable[[], str]]:
    specification = importlib.util.spec_from_file_location("reference", ROOT / "docs/reference.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    found: dict[str, Callable[[], str]] = module.REFERENCES
    return found


def test_every_reference_is_on_a_page(references: dict[str, Callable[[], str]]) -> None:
    named = [
        name
        for page in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"<!-- reference: ([a-z-]+) -->", page.read_text())
    ]
    assert sorted(named) == sorted(references)


def test_commands_are_whole(references: dict[str, Callable[[], str]]) -> None:
    text = references["commands"]()
    for command in ("serve", "generate", "ledger", "plan", "replay", "model fetch"):
        assert f"## `blockyard {command}`" in text
    [block_size] = re.findall(
        r"^\| `--block-size` \| (.*) \|$", text.partition("generate`")[0], re.M
    )
    assert block_size == "int | 16 | Token slots in a block."
    [preemption] = re.findall(r"^\| `--preemption` \| ([^|]*) \| ([^|]*) \|", text, re.M)[:1]
    assert preemption == ("auto, swap, recompute", "auto")


def test_the_api_is_whole(references: dict[str, Callable[[], str]]) -> None:
    text = references["api"]()
    for proto in ("generation", "cluster"):
        source = (ROOT / "protos" / f"{proto}.proto").read_text()
        for kind, name in re.findall(r"^(service|message|enum) (\w+) \{$", source, re.M):
            assert f"## {kind} `{name}`" in text
        fields = re.findall(r"^ +[\w.<>, ]*?\b(\w+) = \d+;", source, re.M)
        assert len(fields) > 20
        for field in fields:
            assert f"| `{field}` |" in text, field
        for method in re.findall(r"rpc (\w+)\(", source):
            assert f"| `{method}` |" in text


def test_chart_values_are_whole(references: dict[str, Callable[[], str]]) -> None:
    text = references["chart-values"]()
    for value in (
        "image.repository",
        "models[].kvMemory",
        "engine.shmSize",
        "startup.budgetSeconds",
    ):
        assert f"| `{value}` |" in text
    assert "| `server.drainSeconds` | integer | `60` |" in text
    unexplained = [line for line in text.splitlines()[2:] if line.endswith("|  |")]
    assert unexplained == []


def test_the_contributors_page_is_the_repositorys_file(
    references: dict[str, Callable[[], str]],
) -> None:
    text = references["contributing"]()
    for heading in re.findall(r"^## .*$", (ROOT / "CONTRIBUTING.md").read_text(), re.M):
        assert heading in text.splitlines()
    assert not text.startswith("#") and "](." not in text and "`.ci/run`" in text


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip(
        "mkdocs", reason="the docs extra is not installed; `make check` installs it"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    page = (tmp_path / "configuration" / "index.html").read_text()
    assert "--max-step-tokens" in page and "reference:" not in page
