"""The lines of shell in README and docs, and of which kind each is.

`make demo`, `make test` and `make check` are run by CI itself. Lines that ask a server are run
against one of the witness, which is started with the options of all lines that start one. What
`helm` would do, Helm's own engine does. Of what cannot be run here `NOT_RUN` says why; that its
commands, options and files exist is looked at all the same.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)
RUN_BY_CI = {"make demo", "make test", "make check"}
BUILT_HERE = {"make chart": "helm/render.py"}
NOT_RUN = {
    "docker ": "no container engine is here; a test runs the images' install steps",
    "kubectl ": "no Kubernetes is here",
    ".venv/bin/blockyard serve --device cuda": "no GPU is here",
    "blockyard bench serve --structured": "the witness heeds no grammar; its own tests run it",
    "blockyard serve --lora": "tests/cluster/serving/test_adapters.py serves adapters of its own",
    "blockyard load-adapter": "the same test runs it",
    "blockyard unload-adapter": "the same test runs it",
    "make gpu-check": "no GPU is here; a test of its own rehearses it",
    "make soak": "an hour long; its tests are those of `make test`, with more examples",
    "make mutation": "hours long",
    "make test TESTS=": "a part of `make test`",
    ".venv/bin/pre-commit install": "would put hooks into the clone; `make check` runs the same",
}
"""Lines that begin so, and why no test runs them."""
ASKING = ("generate", "ledger", "top")
OFFLINE = ("plan", "measure", "replay", "bench")


def kind_of(line: str) -> str:
    """Which test below runs it."""
    if line in RUN_BY_CI:
        return "ci"
    if line in BUILT_HERE:
        return "built"
    if line.startswith(tuple(NOT_RUN)):
        return "not run"
    if match := re.match(r"(?:\.venv/bin/)?blockyard (\w+)", line):
        if match[1] == "serve":
            return "serve"
        if "bench serve" in line:
            return "asking"
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
def not_run() -> dict[str, str]:
    """How lines begin that no test runs, and why none does."""
    return NOT_RUN


@pytest.fixture(scope="session")
def built_here() -> dict[str, str]:
    """Targets of the Makefile that a test runs, and the script behind each."""
    return BUILT_HERE
