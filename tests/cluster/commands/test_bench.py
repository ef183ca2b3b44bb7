import json

import pytest
from typer.testing import CliRunner

from blockyard.cluster.benchmark.ledger import measure_ledger
from blockyard.cluster.benchmark.oversubscribed import measure_oversubscription
from blockyard.cluster.benchmark.pipeline import PipelineBench
from blockyard.cluster.benchmark.scheduler import SchedulerBench, measure_scheduler
from blockyard.cluster.cli import app
from blockyard.cluster.commands.bench import show_pipeline, show_scheduler


def test_the_scheduler_is_measured_and_every_figure_is_there() -> None:
    speed = measure_scheduler(steps=8, rounds=1)
    assert speed.plan_commit_ms.keys() == {"256", "1024"}
    for times in speed.plan_commit_ms.values():
        assert times.keys() == {"mean", "p99"}
        assert 0 < times["mean"] <= times["p99"]
    assert speed.churn_ratio > 0
    assert speed.pool_size_ratio > 0
    assert speed.prefix_match_32k_ms > 0


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [1500, 6000, None])
def test_twice_the_demand_costs_little(num_blocks: int | None) -> None:
    """Smaller pools than an H200's are harder: fewer requests even out less."""
    over = measure_oversubscription(num_blocks)
    assert over.goodput_ratio > 0.9
    assert over.recomputed_ratio < 0.1
    assert over.zero_progress_steps == 0
    assert over.preemptions.keys() == {"swap", "recompute"}


def test_the_books_are_measured_on_the_way_and_meanwhile() -> None:
    found = measure_ledger(steps=20)
    assert found.running == 256
    for figures in (found.step_ms, found.meanwhile_ms):
        assert figures.keys() == {"0", "2"}
        assert all(times["mean"] > 0 for times in figures.values())


def test_the_command_prints_one_json_object() -> None:
    ran = CliRunner().invoke(
        app, ["bench", "scheduler", "--oversubscribed", "--blocks", "6000", "--json"]
    )
    assert ran.exit_code == 0, ran.output
    figures = json.loads(ran.stdout)
    assert figures.keys() == {
        "goodput_ratio",
        "recomputed_ratio",
        "zero_progress_steps",
        "preemptions",
    }


def test_figures_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    show_scheduler(SchedulerBench({"256": {"mean": 0.25, "p99": 0.5}}, 1.1, 1.0, 1.5))
    told = capsys.readouterr().out
    assert "256 running: 0.250 ms" in told
    assert "1.10 times" in told


@pytest.mark.slow
def test_planning_ahead_is_measured_and_every_figure_is_there() -> None:
    ran = CliRunner().invoke(
        app, ["bench", "pipeline", "--json", "--running", "4", "--rounds", "1"]
    )
    assert ran.exit_code == 0, ran.output
    figures = json.loads(ran.stdout)
    assert figures.keys() == {
        *("running", "step_ms", "tokens_per_second", "gain", "first_token_ms")
    }
    assert figures["tokens_per_second"].keys() == figures["first_token_ms"].keys() == {"1", "2"}
    assert figures["gain"] > 0


def test_what_planning_ahead_gains_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    bench = PipelineBench(64, 8.0, {"1": 1000.0, "2": 1250.0}, 1.25, {"1": 9.5, "2": 12.0})
    show_pipeline(bench)
    told = capsys.readouterr().out
    assert "2 in flight, 64 running, steps of 8 ms or more: 1,250 tokens/s" in told
    assert "after 9.50 ms" in told and "1.250" in told


@pytest.mark.slow
def test_an_ingress_is_measured_and_every_figure_is_there() -> None:
    ran = CliRunner().invoke(
        app, ["bench", "ingress", "--json", "--streams", "4", "--seconds", "2"]
    )
    assert ran.exit_code == 0, ran.output
    figures = json.loads(ran.stdout)
    assert figures.pop("streams") == 4
    assert figures["tokens_per_s"] >= figures["chunks_per_s"]
    assert all(figure > 0 for name, figure in figures.items() if not name.startswith("added"))
