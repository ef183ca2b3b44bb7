"""Fills pages with reference tables while the site is built, so that none can be out of date.

A page names one as `<!-- reference: NAME -->`; see `reference.py` for what there is. Links that
leave `docs/` are turned to the repository's files on the page they came from.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs for each page before it is rendered."""
    specification = importlib.util.spec_from_file_location("reference", FOLDER / "reference.py")
    assert specification is not None and specification.loader is not None
    reference = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(reference)

    def fill(match: re.Match[str]) -> str:
        text: str = reference.REFERENCES[match[1]]()
        return text

    filled = re.sub(r"<!-- reference: ([a-z-]+) -->", fill, markdown)
    # The site holds docs/ alone; what lies outside is named, not linked.
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", filled)
