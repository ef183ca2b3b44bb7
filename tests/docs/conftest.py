"""The lines of shell in README and docs, and of which kind each is.

`make demo`, `make test` and `make check` are run by CI itself. Lines that ask a server are run
against one of the witness. What `helm` would do, Helm's own engine does. Container engines and
Kubernetes are not here: of those lines only the files are looked at.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
RUN_BY_CI = {"make demo", "make test", "make check"}
BUILT_HERE = {"make chart": "helm/render.py"}
NOT_HERE = ("docker ", "kubectl ")
NEEDS_A_GPU = (".venv/bin/blockyard serve --device cuda",)
ASKING = ("generate", "ledger", "top")
OFFLINE = ("plan", "measure", "replay", "bench")


def kind_of(line: str) -> str:
    """Which test below runs it."""
    if line in RUN_BY_CI:
        return "ci"
    if line in BUILT_HERE:
        return "built"
    if line.startswith(NOT_HERE):
        return "not here"
    if line in NEEDS_A_GPU:
        return "gpu"
    if match := re.match(r"\.venv/bin/blockyard (\w+)", line):
        if match[1] == "serve":
            return "serve"
        return "asking" if match[1] in ASKING else "offline" if match[1] in OFFLINE else "unknown"
    first = line.split()[0]
    return {"curl": "asking", "grpcurl": "asking", "helm": "helm", ".venv/bin/pip": "pip"}.get(
        first, "unknown"
    )


def shell_lines() -> list[str]:
    """Each once, in order, comments taken off."""
    found: dict[str, None] = {}
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                if line.strip():
                    found[line.partition("  #")[0].strip()] = None
    return list(found)


@pytest.fixture(scope="session")
def lines() -> list[str]:
    return shell_lines()


@pytest.fixture(scope="session")
def of_kind(lines: list[str]) -> Callable[[str], list[str]]:
    """The lines of a kind."""
    return lambda kind: [line for line in lines if kind_of(line) == kind]


@pytest.fixture(scope="session")
def built_here() -> dict[str, str]:
    """Targets of the Makefile that a test runs, and the script behind each."""
    return BUILT_HERE
