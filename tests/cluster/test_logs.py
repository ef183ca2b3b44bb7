"""What a log line looks like, and that processes and pipes do not break it."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blockyard.cluster.commands.log_options import logging_as
from blockyard.cluster.logs import LogConfig, fields, start_logging


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts logging to a file; answers how to read its lines. All is as it was afterwards."""
    logger = logging.getLogger("blockyard")
    before = (logger.handlers[:], logger.level, logger.propagate)
    file = tmp_path / "log"

    def start(**told: Any) -> Callable[[], list[str]]:
        start_logging(LogConfig(file=str(file), **told))
        return lambda: file.read_text().splitlines()

    yield start
    logger.handlers[:], logger.level, logger.propagate = before


logger = logging.getLogger("blockyard.cluster.somewhere")


def test_a_line_of_json_has_its_fields(log: Any) -> None:
    lines = log(format="json")
    logger.info("it is %d", 3, extra=fields(request_id="r1", seconds=0.5, absent=None))
    [line] = map(json.loads, lines())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO",
        "logger": "blockyard.cluster.somewhere",
        "message": "it is 3",
        "process": os.getpid(),
        "request_id": "r1",
        "seconds": 0.5,
    }


def test_fields_take_nothing_elses_place(log: Any) -> None:
    lines = log(format="json")
    logger.warning("true", extra=fields(message="false", level="DEBUG"))
    [line] = map(json.loads, lines())
    assert (line["message"], line["level"]) == ("true", "WARNING")


def test_nobody_writes_a_line_of_their_own(log: Any) -> None:
    lines = log()
    logger.info("hello", extra=fields(tenant='a"\n2026-01-01T00:00:00Z ERROR forged'))
    [line] = lines()
    assert line.endswith(
        r'INFO blockyard.cluster.somewhere: hello tenant="a\"\n2026-01-01T00:00:00Z ERROR forged"'
    )


@pytest.mark.parametrize("style", ["text", "json"])
def test_an_exception_is_told_with_its_place(log: Any, style: str) -> None:
    lines = log(format=style)
    try:
        raise ValueError("x" * 9000)
    except ValueError:
        logger.exception("failed")
    told = "\n".join(lines())
    assert "failed" in told and "xxx" in told
    assert len(told) < 4096  # a pipe takes so much in one piece
    if style == "json":
        assert json.loads(told)["error"].endswith("x")


def test_what_is_below_the_level_is_left_out(log: Any) -> None:
    lines = log(level="WARNING")
    logger.info("no")
    logger.warning("yes")
    assert len(lines()) == 1


def test_logging_starts_anew_and_never_twice(log: Any) -> None:
    log(format="text")
    lines = log(format="json")
    logger.info("once")
    assert [json.loads(line)["message"] for line in lines()] == ["once"]


@pytest.mark.parametrize("told", [{"format": "xml"}, {"level": "LOUD"}])
def test_what_is_not_known_is_refused(told: dict[str, str]) -> None:
    [(name, value)] = told.items()
    with pytest.raises(ValueError, match=f"log {name} is '{value}'; known are"):
        LogConfig(**told)  # type: ignore[arg-type]  # wrong on purpose


def test_lines_of_other_processes_come_to_the_terminal(
    log: Any, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with logging_as("json", "info", None, False, None) as told:
        assert told.file is not None and told.level == "INFO"
        start_logging(told)
        for number in range(200):
            logger.info("line", extra=fields(number=number))
    sys.stderr.flush()
    lines = capfdbinary.readouterr().err.splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(200))
    assert not os.path.exists(told.file)
    logger.info("nobody reads any more")  # and nobody fails


def test_a_pipe_that_nobody_reads_stops_nobody(log: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)
    try:
        start_logging(LogConfig(file=str(pipe)))
        for _ in range(1000):
            logger.info("x" * 200)
    finally:
        os.close(held)


def test_a_file_that_cannot_be_opened_stops_nobody(
    log: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log()
    start_logging(LogConfig(file=str(tmp_path / "none" / "log")))
    logger.info("here")
    told = capfd.readouterr().err
    assert "lines go to standard error: [Errno 2]" in told and "here" in told


def test_on_somebodys_cluster_lines_stay_where_ray_keeps_them(tmp_path: Path) -> None:
    with logging_as("text", "INFO", None, True, "127.0.0.1:6379") as told:
        assert told == LogConfig(prompts=True)
    with logging_as("text", "INFO", tmp_path / "log", False, "127.0.0.1:6379") as told:
        assert told.file == str(tmp_path / "log")
