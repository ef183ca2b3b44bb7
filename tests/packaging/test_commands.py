"""The Makefile installs once, says what is missing, and has what the documents name."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)

# An interpreter that notes how it was called, and makes a .venv of tools that do the same.
RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in
"-m venv .venv")
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    cp "$0" .venv/bin/blockyard ;;
*version_info*) exit "${OLD:-0}" ;;
*ensurepip*) exit "${BARE:-0}" ;;
-V) echo "Python 3.9.2" ;;
"$FAILING") exit 3 ;;
esac
"""


class Workshop:
    """A copy of the Makefile among tools that only note their calls."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = folder / "calls"
        self._python = folder / "python3"
        self._python.write_text(RECORDER, encoding="utf-8")
        self._python.chmod(0o755)
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)

    def make(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        outer = ("MAKEFLAGS", "MFLAGS", "TESTS", "PYTEST_ARGS")  # when make runs these tests
        inherited = {name: value for name, value in os.environ.items() if name not in outer}
        return subprocess.run(
            ["make", f"PYTHON={self._python}", *words],
            cwd=self._folder,
            env={**inherited, "CALLS": str(self._calls), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        """Calls since the last time this was asked."""
        noted = self._calls.read_text(encoding="utf-8").splitlines() if self._calls.exists() else []
        self._calls.unlink(missing_ok=True)
        return noted

    def touch(self, name: str) -> None:
        later = (self._folder / ".venv" / "stamps" / "model").stat().st_mtime + 10
        os.utime(self._folder / name, (later, later))


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_setup_installs_and_fetches_once(workshop: Workshop) -> None:
    ran = workshop.make("setup")
    assert ran.returncode == 0, ran.stderr
    installed, fetched, built = workshop.calls()[-3:]
    assert installed.startswith("python -m pip install")
    assert installed.endswith("-c constraints.txt -e .")
    assert fetched == "blockyard model fetch"
    assert built == "blockyard doctor"
    assert workshop.make("setup").returncode == 0
    assert workshop.calls() == []


def test_new_pins_are_installed(workshop: Workshop) -> None:
    workshop.make("setup")
    workshop.calls()
    workshop.touch("constraints.txt")
    workshop.make("setup")
    (installed,) = workshop.calls()
    assert installed.startswith("python -m pip install")


def test_ci_installs_once(workshop: Workshop) -> None:
    for stamp in ("dev", "test", "run"):
        assert workshop.make(f".venv/stamps/{stamp}").returncode == 0
    assert [call for call in workshop.calls() if "pip install" in call] == [
        "python -m pip install --disable-pip-version-check -c constraints.txt -e .[dev]"
    ]


def test_a_failed_installation_is_tried_again(workshop: Workshop) -> None:
    install = "-m pip install --disable-pip-version-check -c constraints.txt -e ."
    assert workshop.make("setup", FAILING=install).returncode != 0
    workshop.calls()
    assert workshop.make("setup").returncode == 0
    assert workshop.calls() == [
        f"python {install}",
        "blockyard model fetch",
        "blockyard doctor",
    ]


def test_the_second_demo_and_test_install_nothing(workshop: Workshop) -> None:
    workshop.make("demo")
    workshop.make("test")
    workshop.calls()
    workshop.make("demo", "test")
    assert workshop.calls() == ["blockyard demo", "python -m pytest -q -m not slow"]


def test_a_failed_demo_or_test_is_told(workshop: Workshop) -> None:
    workshop.make("setup")
    assert workshop.make("demo", FAILING="demo").returncode != 0
    assert workshop.make("test", FAILING="-m pytest -q -m not slow").returncode != 0
    assert workshop.make("demo", "test").returncode == 0


def test_an_old_python_is_refused_with_the_way_out(workshop: Workshop) -> None:
    ran = workshop.make("setup", OLD="1")
    assert ran.returncode != 0
    assert "needs Python 3.11 or newer" in ran.stderr
    assert "is Python 3.9.2" in ran.stderr
    assert "PYTHON=" in ran.stderr


def test_a_missing_venv_module_is_told_with_the_way_out(workshop: Workshop) -> None:
    ran = workshop.make("setup", BARE="1")
    assert ran.returncode != 0
    assert "apt install python3-venv" in ran.stderr


def test_a_missing_python_is_told_with_the_way_out(workshop: Workshop) -> None:
    ran = workshop.make("setup", "PYTHON=/nowhere/python3")
    assert ran.returncode != 0
    assert "/nowhere/python3 was not found" in ran.stderr
    assert "apt install python3" in ran.stderr


def targets() -> set[str]:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    return set(phony.split())


def test_help_lists_the_targets(workshop: Workshop) -> None:
    listed = set(re.findall(r"^  make (\S+)", workshop.make().stdout, re.MULTILINE))
    assert listed == targets() - {"check-protos"}


def code_in(document: str) -> list[str]:
    """Lines of fenced code and pieces of inline code."""
    text = (ROOT / document).read_text(encoding="utf-8")
    fenced = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in fenced for line in block.splitlines()]
    return lines + re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_targets_that_a_document_names_exist(document: str) -> None:
    named = {code.split()[1] for code in code_in(document) if re.match(r"make [a-z]", code)}
    assert named <= targets()


COMMANDS = sorted(
    {"demo", "doctor", "model fetch"}  # the Makefile's own
    | {
        match[1]
        for document in DOCUMENTS
        for code in code_in(document)
        if (match := re.match(r"(?:\.venv/bin/)?blockyard ([a-z].*)", code))
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_a_document_names_exist(command: str) -> None:
    words = re.sub(r'"[^"]*"', "", command).partition("#")[0].split()
    options = {word for word in words if word.startswith("--")}
    names = [word for word in words[:2] if re.fullmatch(r"[A-Za-z]+(-[A-Za-z]+)*", word)]
    ran = subprocess.run(
        [sys.executable, "-m", "blockyard", *names, "--help"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert {option for option in options if option not in ran.stdout} == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_inside_a_document_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    linked = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in linked if not (ROOT / document).parent.joinpath(link).exists()] == []


def test_every_module_has_its_sentence() -> None:
    text = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^- `([\w/]+\.py)`", text, re.MULTILINE))
    modules = {
        file.relative_to(ROOT).as_posix()
        for folder in ("scheduler", "workers", "cuda", "cluster")
        for file in (ROOT / folder).rglob("*.py")
        if file.name != "__init__.py"
    }
    assert described == modules


@pytest.mark.parametrize(
    ("failing", "reached"),
    [("", ["check", "test", "test-long", "demo"]), ("test", ["check", "test"])],
)
def test_ci_runs_what_a_person_runs_and_stops_at_a_failure(
    tmp_path: Path, failing: str, reached: list[str]
) -> None:
    script = tmp_path / ".ci" / "run"
    tool = tmp_path / "bin" / "make"
    for file in (script, tool):
        file.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "run", script)
    tool.write_text(f'#!/bin/sh\necho "$1" >> calls\n[ "$1" != "{failing}" ]\n', encoding="utf-8")
    tool.chmod(0o755)
    ran = subprocess.run(
        [script],
        env={**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "calls").read_text(encoding="utf-8").split() == reached
    assert (ran.returncode == 0) is (failing == "")
    assert ("make test PYTHON" in ran.stdout) and ("failed after" in ran.stdout) is bool(failing)
