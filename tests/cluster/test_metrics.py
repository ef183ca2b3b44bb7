"""What a scraper is told: every metric, from the books of the moment."""

import re
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from blockyard.cluster.books.central_metrics import CENTRAL_METRICS
from blockyard.cluster.books.group_books import facts_of
from blockyard.cluster.books.metric_specs import HISTOGRAMS, METRICS
from blockyard.cluster.books.request_meter import REQUEST_METRICS, RequestMeter
from blockyard.cluster.books.step_meter import STEP_PARTS, StepMeter
from blockyard.cluster.metrics import encode_reports
from blockyard.scheduler.contiguous.shadow import ContiguousShadow
from blockyard.scheduler.ledger import BlockCounts, PreemptionCounts
from blockyard.scheduler.plan import StepResult
from blockyard.workers.config import AllocatorMemory, WorkerProfile

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
REFERENCES = run_path(str(DOCS.with_name("reference.py")))["REFERENCES"]


@pytest.fixture
def full(report: Any) -> Any:
    """A report with everything that can be told."""
    shadow = ContiguousShadow(160, 64)
    for number in range(4):
        shadow.arrive(f"r{number}", 10, 20, float(number))
    profiles = [
        WorkerProfile(10, 1600, 7000, 300, "cuda", "bfloat16"),
        WorkerProfile(10, 800, 5000, 200, "cuda", "bfloat16"),
    ]
    ledger = replace(
        report.ledger,
        host_blocks=BlockCounts(total=6, free=2, cached=0, active=3, fenced=1),
        preempted=PreemptionCounts(
            *(2, 1, 0, 5, 4),
            swap_estimated_seconds=0.5,
            swap_seconds=0.75,
            recompute_estimated_seconds=1.5,
            recompute_seconds=1.25,
        ),
    )
    meter = StepMeter()
    meter.sent(1.0, 1.5)
    result = StepResult(1, (), compute_seconds=3.0, copy_seconds=0.5, sample_seconds=1.0)
    meter.ended(result, 5.25, 5.5)
    meter.reformed()
    books = replace(
        report.books,
        ledger=ledger,
        shadow=shadow.report(4.0),
        facts=facts_of(profiles),
        allocators=(AllocatorMemory(900, 600, 300, 60), None),
        steps=meter.report(),
    )
    return replace(report, books=books)


def samples_of(*reports: Any) -> dict[tuple[str, ...], float]:
    """Values by name and labels in declared order, `blockyard_` left out; histograms too."""
    labels = {metric.name: metric.labels for metric in METRICS}
    for spec in HISTOGRAMS:
        labels |= {f"{spec.name}_{part}": spec.labels for part in ("sum", "count")}
        labels[f"{spec.name}_bucket"] = (*spec.labels, "le")
    text = encode_reports(reports, "")[0].decode()
    return {
        (
            sample.name.removeprefix("blockyard_"),
            *(sample.labels[label] for label in labels[sample.name]),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_values_are_those_of_the_books(full: Any) -> None:
    samples = samples_of(full)
    group = "group-0"
    assert samples["blocks", group, "cached"] == 1
    assert ("blocks", group, "total") not in samples  # a sum over states must not count twice
    assert sum(v for k, v in samples.items() if k[0] == "blocks") == 10
    assert sum(v for k, v in samples.items() if k[:3] == ("block_bytes", group, "1")) == 8000
    assert samples["block_bytes", group, "0", "active"] == 4800
    assert samples["slot_bytes", group, "1", "filled"] == 40 * 50
    assert samples["slots", group, "empty_tail"] == 6
    assert samples["requests", group, "waiting"] == 1
    assert samples["waste_ratio", group, "internal"] == 6 / 48
    assert samples["waste_ratio", group, "external"] == 0
    assert samples["filled_ratio", group] == 40 / 48
    assert samples["pool_filled_ratio", group] == 40 / 160
    assert samples["host_blocks", group, "active"] == 3
    assert samples["host_block_bytes", group, "1", "fenced"] == 800
    assert samples["preempted_total", group, "swapped"] == 2
    assert samples["swapped_blocks_total", group, "in"] == 4
    assert samples["swapped_bytes_total", group, "1", "out"] == 5 * 800
    assert samples["preemption_estimated_seconds_total", group, "swapped"] == 0.5
    assert samples["preemption_seconds_total", group, "swapped"] == 0.75
    assert samples["preemption_estimated_seconds_total", group, "recomputed"] == 1.5
    assert samples["preemption_seconds_total", group, "recomputed"] == 1.25
    assert samples["reforms_total", group] == 1
    assert samples["steps_total", group] == 77
    assert samples["preemptions_total", group] == 3
    assert samples["memory_bytes", group, "1", "weights"] == 5000
    assert samples["memory_bytes", group, "0", "kv_blocks"] == 16_000
    assert samples["allocator_bytes", group, "0", "slack"] == 300
    assert samples["allocator_fragmentation_ratio", group, "0"] == 0.8
    assert ("allocator_fragmentation_ratio", group, "1") not in samples
    assert samples["contiguous_requests", group, "max_seq_len", "running"] == 2
    assert samples["contiguous_requests", group, "max_seq_len", "queued"] == 2
    assert samples["contiguous_requests", group, "pow2", "running"] == 4
    contiguous = [v for k, v in samples.items() if k[:3] == ("contiguous_slots", group, "pow2")]
    assert sum(contiguous) == 160


def test_the_time_of_a_step_is_told_by_its_parts(full: Any) -> None:
    samples = samples_of(full)
    sums = {part: samples["step_seconds_sum", "group-0", part] for part in STEP_PARTS}
    assert sums == {
        "plan": 0.5,
        "wire": 0.25,
        "copy": 0.5,
        "forward": 2.0,
        "sample": 1.0,
        "commit": 0.25,
    }
    assert sum(sums.values()) == 5.5 - 1.0  # all of it, once
    bucket = ("step_seconds_bucket", "group-0", "forward")
    assert [samples[*bucket, bound] for bound in ("1.0", "2.5", "+Inf")] == [0, 1, 1]
    assert samples["step_seconds_count", "group-0", "forward"] == 1


def test_every_metric_has_a_value_when_all_is_known(full: Any) -> None:
    told = {name for name, *_ in samples_of(full)}
    single = {metric.name.removeprefix("blockyard_") for metric in METRICS}
    assert told - single == {f"step_seconds_{part}" for part in ("bucket", "sum", "count")}
    assert single <= told


def test_what_is_not_known_is_left_out(report: Any) -> None:
    told = {name for name, *_ in samples_of(report)}
    assert "blocks" in told
    assert not told & {"memory_bytes", "block_bytes", "contiguous_slots", "allocator_bytes"}
    assert samples_of() == {}


def test_nothing_is_in_the_global_registry(full: Any) -> None:
    samples_of(full)
    assert not [family for family in REGISTRY.collect() if family.name.startswith("blockyard")]


def test_the_page_has_every_table() -> None:
    named = re.findall(r"<!-- reference: ([a-z]+-metrics) -->", DOCS.read_text())
    kinds = ("group", "rank", "request", "shadow", "central")
    assert named == [f"{kind}-metrics" for kind in kinds]
    told = "".join(REFERENCES[name]() for name in named)
    rows = re.findall(r"^\| `(blockyard_\w+)` \| ([\w]+) \| ([\w, ]*) \| (.+) \|$", told, re.M)
    specs: tuple[Any, ...] = (*METRICS, *HISTOGRAMS, *REQUEST_METRICS, *CENTRAL_METRICS)
    assert sorted(name for name, *_ in rows) == sorted(spec.name for spec in specs)
    counted = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in RequestMeter().collect()
    }
    assert counted == {spec.name for spec in REQUEST_METRICS}


@pytest.mark.parametrize(
    "metric",
    (*METRICS, *HISTOGRAMS, *REQUEST_METRICS, *CENTRAL_METRICS),
    ids=lambda metric: metric.name,
)
def test_a_unit_is_what_the_name_says(metric: Any) -> None:
    for ending in ("seconds", "bytes", "tokens", "blocks", "slots", "requests", "steps"):
        if metric.name.removesuffix("_total").endswith(f"_{ending}"):
            assert metric.unit == ending
    if metric.name.endswith("_ratio"):
        assert metric.unit == "share"
    assert metric.unit


@pytest.mark.parametrize("metric", (*METRICS, *HISTOGRAMS), ids=lambda metric: metric.name)
def test_the_meaning_names_every_value_of_a_label(metric: Any, full: Any) -> None:
    scoped = 2 if metric.labels[1:2] in (("rank",), ("policy",)) else 1
    if len(metric.labels) == scoped or metric.name == "blockyard_group_info":
        return
    name = metric.name.removeprefix("blockyard_")
    values = {key[-1] for key in samples_of(full) if key[0] in (name, f"{name}_sum")}
    assert values
    if not metric.name.endswith(("block_bytes", "slot_bytes")):  # the states of the counts
        assert {value for value in values if f"`{value}`" not in metric.help} == set()
