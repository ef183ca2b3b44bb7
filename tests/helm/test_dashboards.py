"""Grafana's dashboards name metrics that exist, and are whole enough to be imported."""

import json
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from blockyard.cluster.books.metric_specs import HISTOGRAMS, METRICS
from blockyard.cluster.books.request_meter import REQUEST_METRICS

DASHBOARDS = sorted(
    (Path(__file__).resolve().parents[2] / "helm" / "blockyard" / "dashboards").glob("*.json")
)
BUCKETED: list[Any] = [*HISTOGRAMS, *(spec for spec in REQUEST_METRICS if spec.buckets)]
SINGLE: list[Any] = [*METRICS, *(spec for spec in REQUEST_METRICS if not spec.buckets)]
LABELS = {
    **{spec.name: set(spec.labels) for spec in SINGLE},
    **{f"{spec.name}_bucket": {*spec.labels, "le"} for spec in BUCKETED},
    **{f"{spec.name}_{part}": set(spec.labels) for spec in BUCKETED for part in ("sum", "count")},
}


def load(path: Path) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(path.read_text())
    return dashboard


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_every_query_is_of_a_metric_with_such_labels(path: Path) -> None:
    queries = [target["expr"] for panel in load(path)["panels"] for target in panel["targets"]]
    queries += [
        variable["query"]["query"]
        for variable in load(path)["templating"]["list"]
        if variable["type"] == "query"
    ]
    for query in queries:
        named = re.findall(r"\bblockyard_\w+", query)
        assert named, query
        for name in named:
            assert name in LABELS, f"{name} is no metric"
        for name, matchers in re.findall(r"(blockyard_\w+)\{([^}]*)\}", query):
            used = set(re.findall(r"(\w+)=~?\"", matchers))
            assert used <= LABELS[name], f"{name} has no label {used - LABELS[name]}"
        for labels in re.findall(r"by \(([^)]*)\)", query):
            known = set().union(*(LABELS[name] for name in named))
            assert set(labels.split(", ")) <= known
        # A counter alone says little; what has it grown by?
        for name in named:
            if name.endswith(("_total", "_bucket", "_sum", "_count")):
                assert re.search(rf"(rate|increase)\({name}", query), query


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_panels_are_whole_and_do_not_overlap(path: Path) -> None:
    dashboard = load(path)
    assert dashboard["uid"] == f"blockyard-{path.stem}"
    assert {"title", "schemaVersion", "templating", "time", "panels"} <= set(dashboard)
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"] and panel["type"] in ("timeseries", "stat")
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_the_chart_hands_them_to_grafana(render: Callable[..., Any]) -> None:
    rendered = render({"monitoring": {"dashboards": {"enabled": True}}})
    [config] = rendered.of_kind("ConfigMap")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in config["data"].items()} == {
        path.name: load(path) for path in DASHBOARDS
    }


def test_every_group_metric_is_shown_somewhere() -> None:
    shown = "".join(path.read_text() for path in DASHBOARDS)
    names = [spec.name for spec in (*SINGLE, *BUCKETED)]
    hidden = {n for n in names if n not in shown and not n.startswith("blockyard_contiguous")}
    # What others already say: totals of what is shown by kind or state, and ratios of it.
    assert hidden <= {
        "blockyard_host_blocks",
        "blockyard_filled_ratio",
        "blockyard_held_tokens",
        "blockyard_sharing_ratio",
        "blockyard_preemptions_total",
        "blockyard_merged_blocks_total",
    }
