"""`blockyard ledger` on a terminal and in a pipe."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from blockyard.cluster.books import ledger_text
from blockyard.cluster.books.group_books import facts_of
from blockyard.cluster.books.ledger_message import ledger_message
from blockyard.cluster.cli import app
from blockyard.protos import cluster_pb2
from blockyard.scheduler.contiguous.shadow import ContiguousShadow
from blockyard.scheduler.request import RefusalCode, RequestRefused
from blockyard.workers.config import AllocatorMemory, WorkerProfile

Show = Callable[..., str]


@pytest.fixture
def busy(report: Any) -> Any:
    """A group of two ranks with everything that can be told."""
    shadow = ContiguousShadow(160_000, 4096)
    for number in range(60):
        shadow.arrive(f"r{number}", 900, 2000, float(number))
    profiles = [WorkerProfile(10, 16 * 131_072, 16_060_522_496, 2_147_483_648, "cuda", "bfloat16")]
    memory = AllocatorMemory(20_000_000_000, 18_000_000_000, 2_000_000_000, 300_000_000)
    books = replace(
        report.books,
        shadow=shadow.report(60.0),
        facts=facts_of(profiles * 2),
        allocators=(memory, memory),
        audit="",
    )
    return replace(report, group_id="group-0123abcd", books=books)


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    def shown(*responses: Any, terminal: bool = False) -> str:
        output = io.StringIO()
        console = Console(file=output, width=80, force_terminal=terminal, color_system=None)
        monkeypatch.setattr(ledger_text, "Console", lambda: console)
        ledger_text.show_ledgers(responses)
        return output.getvalue()

    return shown


def response(*reports: Any) -> Any:
    return cluster_pb2.LedgerResponse(groups=[ledger_message(report) for report in reports])


def test_everything_fits_80_columns(busy: Any, show: Show) -> None:
    text = show(response(*[replace(busy, group_id=f"group-0123abc{n}") for n in range(5)]))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for number in range(5):
        assert f"group-0123abc{number}" in text


def test_it_says_what_matters(busy: Any, show: Show) -> None:
    text = " ".join(show(response(busy)).split())
    assert "│ slots: filled │ 40 (83.3 %) │" in text
    assert "│ bytes: weights │ 32.1 GB │" in text
    assert "│ bytes: allocator slack │ 4.0 GB (85 % in holes) │" in text
    assert "contiguous(max_seq_len): 39 running, 22 % of memory holds tokens; blockyard:" in text
    assert "max_seq_len after 39 s: out of memory with 67.1 MB free" in text
    assert "audit: the books add up" in text
    assert text.count("16.1 GB") == 2  # each rank's weights


def test_who_looks_back_is_shown_once_there_is_something_to_see(report: Any, show: Show) -> None:
    shadow = ContiguousShadow(160_000, 4096)
    shadow.arrive("r", 900, 2000, 0.0)

    def shown(now: float) -> str:
        books = replace(report.books, shadow=shadow.report(now))
        return " ".join(show(response(replace(report, books=books))).split())

    text = shown(5.0)
    assert "│ max_seq_len │ 1 │" in text and "│ pow2 │ 1 │" in text
    assert "max_seq_len: each request reserves the longest that it may become" in text
    assert "exact" not in text
    shadow.end("r", 20.0)
    shadow.arrive("s", 900, 2000, 20.0)
    text = shown(33.0)
    assert "│ exact │ 0 │" in text
    assert "exact: each reserves what it will need, known from looking back, 13 s ago" in text


def test_a_policy_that_only_a_newer_server_knows_is_shown_too(busy: Any, show: Show) -> None:
    told = response(busy)
    told.groups[0].contiguous[0].policy = "buddy"
    text = " ".join(show(told).split())
    assert "│ buddy │ 39 │" in text
    assert "buddy: how a newer server than this command reckons" in text


def test_on_a_terminal_the_table_is_drawn_in_place(report: Any, show: Show) -> None:
    text = show(response(report), response(report), terminal=True)
    assert "\x1b[1A" in text


def test_in_a_pipe_each_change_is_printed(report: Any, show: Show) -> None:
    assert show(response(report), response(), response(report)).count("group-0: small") == 2


@pytest.fixture
def run(served_address: str) -> Callable[..., Result]:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--address", served_address])

    return invoke


def test_watching_as_json_gives_an_object_a_line(
    run: Callable[..., Result], dispatcher: Any, report: Any
) -> None:
    later = replace(report.books, ledger=replace(report.ledger, step=78))
    looks: list[Any] = [(report,), (report,), (), (replace(report, books=later),)]

    async def reports(audit: bool, memory: bool) -> Any:
        if not looks:
            raise RequestRefused(RefusalCode.UNAVAILABLE, "over")
        return looks.pop(0)

    dispatcher.reports = reports
    result = run("ledger", "--watch", "--json", "--interval", "0.1")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [[group["step"] for group in line["groups"]] for line in lines] == [[77], [], [78]]
    assert result.exit_code == 1  # the server went away
    assert "over" in result.stderr


def test_the_audit_is_asked_for_and_sets_the_exit_code(
    run: Callable[..., Result], dispatcher: Any, report: Any
) -> None:
    assert run("ledger", "--audit").exit_code == 0
    assert dispatcher.asked == [(True, True)]
    wrong = replace(report.books, audit="block 7 is free and held by request a")
    dispatcher.books = (replace(report, books=wrong),)
    result = run("ledger", "--audit")
    assert result.exit_code == 1
    assert "audit: block 7 is free and held by request a" in result.stdout
    assert run("ledger", "--audit", "--watch").exit_code == 2
