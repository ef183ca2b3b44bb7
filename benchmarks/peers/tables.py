"""Writes the comparison's newest result into the READMEs and the documentation, as a table.

The table stands between `<!-- peers: begin -->` and `<!-- peers: end -->`; a test compares it with
the file, so that no figure there was typed by hand. Its words are in `tables.toml`.

    python benchmarks/peers/tables.py
"""

import json
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["PAGES", "newest", "put", "table"]

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
PAGES: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
"""Where the table stands, and its words there."""

_PEERS = {
    "openvino": "OpenVINO GenAI",
    "vllm": "vLLM",
    "llama.cpp": "llama.cpp",
    "transformers": "transformers",
}
_WEIGHTS = ("fp32", "bf16", "int8", "int4")


def newest() -> dict[str, Any] | None:
    """The latest comparison in `benchmarks/results/`; None when there is none."""
    files = (ROOT / "benchmarks" / "results").glob("peers-*.json")
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return max(results, key=lambda result: str(result["date"]), default=None)


def table(result: dict[str, Any], words: dict[str, Any]) -> str:
    """The result in Markdown, a line for each load and precision that somebody else served too."""
    lines = [
        "| " + " | ".join(words["head"]) + " |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    rows = result["rows"]
    for ours in sorted(rows, key=lambda row: (row["workload"], _WEIGHTS.index(row["weights"]))):
        if ours["server"] != "blockyard" or "times_best_peer" not in ours:
            continue
        key = (ours["workload"], ours["weights"])
        rivals = [row for row in rows if (row["workload"], row["weights"]) == key]
        rivals.remove(ours)
        best = max(rivals, key=lambda row: float(row["output_tokens_per_s"]))
        cells = (
            words[ours["workload"]],
            ours["weights"],
            _figure(ours),
            f"{_figure(best)} ({_PEERS[best['server']]})",
            f"{ours['times_best_peer']:.2f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([words["on"].format(**result), "", *lines])


def _figure(row: dict[str, Any]) -> str:
    """Tokens a second; seconds to the one token of a long prompt."""
    if row["workload"] == "w4":
        return f"{row['ttft_ms'] / 1e3:.2f}"
    return f"{row['output_tokens_per_s']:.1f}"


def put(text: str, shown: str) -> str:
    """A page with the table in place of what stood between the marks.

    Raises:
        ValueError: a mark is not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} ... {END}; write them where the table belongs")
    return f"{before}{BEGIN}\n{shown}\n{END}{after}"


def main() -> None:
    """Rewrite the pages."""
    result = newest()
    if result is None:
        raise SystemExit("benchmarks/results/ holds no comparison; `make bench-peers` makes one")
    for name, words in PAGES.items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        path.write_text(put(text, table(result, words)), encoding="utf-8")


if __name__ == "__main__":
    main()
