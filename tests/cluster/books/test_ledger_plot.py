"""Pictures of a running cluster's memory: what is drawn, and that watching never grows."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blockyard.cluster.books.ledger_plot import LedgerHistory
from blockyard.cluster.cli import app
from blockyard.protos import cluster_pb2


def books(active: int, filled: int, policies: tuple[str, ...] = ()) -> cluster_pb2.LedgerResponse:
    group = cluster_pb2.GroupLedger(
        blocks=cluster_pb2.BlockCounts(total=100, free=90 - active, cached=10, active=active),
        slots=cluster_pb2.SlotCounts(filled=filled, promised=1, empty_tail=active * 4 - filled - 1),
        requests=cluster_pb2.RequestCounts(running=3),
        block_size=4,
        contiguous=[
            cluster_pb2.ContiguousServer(
                policy=policy, capacity=400, filled=50, reservation=150, free=200, largest_hole=120
            )
            for policy in policies
        ],
    )
    return cluster_pb2.LedgerResponse(groups=[group])


def test_now_and_over_time_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    history = LedgerHistory()
    history.add(0.0, cluster_pb2.LedgerResponse())
    with pytest.raises(ValueError, match="no group was up"):
        history.write(tmp_path / "none.png")
    history.add(1.0, books(10, 30))
    history.write(tmp_path / "now.svg")
    history.add(2.0, books(20, 60, ("max_seq_len",)))
    history.write(tmp_path / "later.svg")
    now, later = ((tmp_path / f"{name}.svg").read_text() for name in ("now", "later"))
    assert now.count("<!-- blocks: 3 requests running at the end") == 1
    assert "8% of memory holds tokens" in now and "15% of memory holds tokens" in later
    assert "contiguous(max_seq_len)" in later and "contiguous(max_seq_len)" not in now


def test_a_watch_of_days_fits_into_one_picture() -> None:
    history = LedgerHistory()
    for second in range(20_000):
        history.add(float(second), books(10, 30))
        assert len(history) < 2048
    assert len(history) > 500


def test_the_command_draws_what_it_shows(served_address: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "books.png"
    words = ["ledger", "--address", served_address, "--json", "--plot"]
    result = CliRunner().invoke(app, [*words, str(plot)])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["groups"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    result = CliRunner().invoke(app, [*words, str(tmp_path / "books.txt")])
    assert result.exit_code == 2
    assert "png" in result.stderr
