"""The comparison with other servers stands in the pages as the newest result has it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks/peers/tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_show_the_newest_result(tables: ModuleType) -> None:
    result = tables.newest()
    assert result is not None, "benchmarks/results/ holds no comparison"
    for name, words in tables.PAGES.items():
        page = (ROOT / name).read_text(encoding="utf-8")
        assert page == tables.put(page, tables.table(result, words)), (
            f"{name} does not show the newest result: run python benchmarks/peers/tables.py"
        )


def test_each_row_names_the_fastest_of_the_others(tables: ModuleType) -> None:
    def row(server: str, speed: float, **more: object) -> dict[str, object]:
        served = {"workload": "w2", "weights": "int8", "server": server, "version": "1"}
        return {**served, "output_tokens_per_s": speed, "ttft_ms": 1500.0, **more}

    result = {
        **{"cpu": "C", "threads": 2, "date": "2026-01-02", "rounds": 3},
        "rows": [
            row("openvino", 20.0),
            row("blockyard", 30.0, times_best_peer=1.2),
            row("llama.cpp", 25.0),
            row("blockyard", 40.0, weights="int4"),
        ],
    }
    shown = tables.table(result, tables.PAGES["README.md"])
    assert shown.splitlines()[-1] == "| one stream | int8 | 30.0 | 25.0 (llama.cpp) | 1.20 |"
    assert "int4" not in shown


def test_a_page_without_marks_is_refused(tables: ModuleType) -> None:
    with pytest.raises(ValueError, match="peers: begin"):
        tables.put("# A page", "| table |")
