"""A node leaves: Ray is told, and the hook stays until no replica is left."""

import sys
from pathlib import Path

import pytest

from blockyard.cluster.deploy import leave_node
from blockyard.cluster.deploy.leave_node import NotDrained, leave, main


def test_it_stays_until_the_last_replica_has_ended() -> None:
    told: list[float] = []
    seen = iter([["blockyard:ingress", "blockyard:groups"], ["blockyard:groups"], []])
    assert leave(60, told.append, lambda: next(seen)) == []
    assert told == [60]
    assert next(seen, "looked again") == "looked again"


def test_it_gives_up_when_the_time_is_over() -> None:
    assert leave(0.0, lambda _: None, lambda: ["blockyard:groups"]) == ["blockyard:groups"]


@pytest.fixture
def ray_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `ray` that notes its arguments and fails if told to."""
    command = tmp_path / "ray"
    command.write_text(
        '#!/bin/sh\necho "$@" >> "$NOTES"\necho "no such cluster" >&2\nexit ${CODE:-0}\n'
    )
    command.chmod(0o755)
    notes = tmp_path / "notes"
    monkeypatch.setenv("NOTES", str(notes))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return notes


def test_ray_is_told_with_the_time_that_is_left(
    ray_command: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leave_node, "_replicas", lambda: [])
    assert main(["--wait-seconds", "0", "--drain-seconds", "70"]) == 0
    [call] = ray_command.read_text().splitlines()
    assert call.startswith("drain-node --reason=DRAIN_NODE_REASON_PREEMPTION ")
    assert call.endswith("--deadline-remaining-seconds=70")


def test_a_node_that_cannot_drain_says_why(
    ray_command: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CODE", "1")
    assert main(["--wait-seconds", "0", "--drain-seconds", "70"]) == 1
    assert capsys.readouterr().err == "the node was not drained: no such cluster\n"
    with pytest.raises(NotDrained):
        leave(1, leave_node._drain, lambda: [])


def test_what_stayed_is_named(
    ray_command: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leave_node, "_replicas", lambda: ["blockyard:groups"])
    assert main(["--wait-seconds", "0", "--drain-seconds", "0"]) == 1
    assert capsys.readouterr().err == "still running after 0 s: blockyard:groups\n"
