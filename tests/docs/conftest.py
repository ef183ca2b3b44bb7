"""The lines of shell in the documents, and which document each is from."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))


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
