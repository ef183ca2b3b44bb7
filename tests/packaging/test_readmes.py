"""The Chinese README says what the English one does: the same sections, code, tables and links."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")


def test_the_same_code() -> None:
    english, chinese = (
        re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for text in (ENGLISH, CHINESE)
    )
    assert chinese == english, "change the code in README.zh-CN.md, too"


def test_as_many_sections_and_rows() -> None:
    for pattern in (r"^## ", r"^\|"):
        english, chinese = (len(re.findall(pattern, text, re.M)) for text in (ENGLISH, CHINESE))
        assert chinese == english, "add the section or the row to README.zh-CN.md, too"


def test_the_same_links() -> None:
    english, chinese = (
        set(re.findall(r"\]\(([^)]+)\)", text)) - {"README.md", "README.zh-CN.md"}
        for text in (ENGLISH, CHINESE)
    )
    assert chinese == english, "change the links of README.zh-CN.md, too"
    for link in chinese:
        if not link.startswith(("http", "#")):
            page, _, section = link.partition("#")
            assert not section or section in sections(ROOT / page), link
            assert (ROOT / page).exists(), link


def sections(page: Path) -> list[str]:
    """A page's headings as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
