import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from blockyard.cluster.benchmark.json_tasks import JSON_SCHEMAS, json_task
from blockyard.cluster.benchmark.load_endpoint import Answer, EndpointError, Outcome, ServedModel
from blockyard.cluster.benchmark.load_requests import (
    LoadRequest,
    MadeUpLoad,
    as_text,
    at_poisson_times,
    fitting,
    of_trace,
    of_workload,
)
from blockyard.cluster.benchmark.load_run import run_load
from blockyard.cluster.benchmark.load_summary import Objective, quantiles_ms, summarise_load
from blockyard.cluster.benchmark.serve_bench import ServeQuestion, measure_serve
from blockyard.cluster.benchmark.structured_load import StructuredLoad, is_valid, measure_structured
from blockyard.cluster.benchmark.workloads import make_workload
from blockyard.cluster.capacity.trace_reader import TraceRequest
from blockyard.cluster.cli import app
from blockyard.scheduler.request import FinishReason


class Held:
    """An endpoint that answers when told to, and counts who is in flight."""

    def __init__(self, reply: Callable[[LoadRequest], str] = lambda request: "x") -> None:
        self.reply = reply
        self.gate = asyncio.Event()
        self.gate.set()
        self.in_flight = 0
        self.most = 0
        self.asked: list[LoadRequest] = []

    async def model(self, name: str) -> ServedModel:
        return ServedModel(name or "held", 64, 100)

    async def ask(self, request: LoadRequest, arrived: Callable[[int], None]) -> Answer:
        self.asked.append(request)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            text = self.reply(request)
            if text == "fail":
                raise EndpointError("HTTP 500", "no")
            arrived(1)
            arrived(2)
            return Answer(text, None, True)
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        pass


def requests(count: int, due: float = 0.0) -> list[LoadRequest]:
    return [LoadRequest((n,), 3, due * n) for n in range(count)]


async def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    endpoint = Held()
    outcomes = await run_load(endpoint, requests(20), 3, 60.0)
    assert endpoint.most == 3
    assert [outcome.request.prompt for outcome in outcomes] == [(n,) for n in range(20)]
    assert {outcome.output_tokens for outcome in outcomes} == {3}


async def test_an_open_loop_waits_for_nobody_and_counts_from_when_it_was_due() -> None:
    endpoint = Held()
    endpoint.gate.clear()
    load = asyncio.create_task(run_load(endpoint, requests(30, 0.001), None, 60.0))
    async with asyncio.timeout(20):
        while endpoint.in_flight < 30:
            await asyncio.sleep(0.001)
    endpoint.gate.set()
    for number, outcome in enumerate(await load):
        assert outcome.due == pytest.approx(0.001 * number)
        # Nobody was answered before the last one was sent.
        assert (outcome.first_token_seconds or 0) >= 0.025 - outcome.due


async def test_failures_and_late_answers_are_counted_apart() -> None:
    endpoint = Held(lambda request: "fail" if request.prompt[0] % 2 else "x")
    figures = summarise_load(await run_load(endpoint, requests(10), 4, 60.0))
    assert (figures.completed, figures.errors) == (5, {"HTTP 500": 5})
    assert figures.requests_per_s == pytest.approx(5 / figures.seconds)
    endpoint.gate.clear()
    late = summarise_load(await run_load(endpoint, requests(2), 2, 0.01))
    assert late.errors == {"timeout": 2}


def test_figures_of_known_times() -> None:
    outcomes = [
        Outcome(
            LoadRequest((1,), 4), 1.0, [(1.5, 1), (1.7, 2), (2.0, 1)], 2.0, Answer("", 4, True)
        ),
        Outcome(LoadRequest((2,), 4), 0.0, [(2.0, 4)], 4.0, Answer("", 4, True)),
    ]
    found = summarise_load(outcomes, Objective(ttft_ms=600.0, itl_ms=200.0))
    assert found.seconds == 4.0
    assert found.output_tokens_per_s == 2.0
    assert found.ttft_ms == {"p50": pytest.approx(500.0), "p90": None, "p99": None}
    assert outcomes[0].gaps() == pytest.approx([0.1, 0.1, 0.3])
    assert found.goodput is not None
    assert (found.goodput.ratio, found.goodput.requests_per_s) == (0.5, 0.25)
    strict = summarise_load(outcomes, Objective(itl_ms=150.0))
    assert strict.goodput is not None and strict.goodput.ratio == 0.5


def test_quantiles_need_samples() -> None:
    assert quantiles_ms([]) == {"p50": None, "p90": None, "p99": None}
    assert quantiles_ms(n / 1e3 for n in range(1, 11))["p90"] == pytest.approx(9.0)
    hundred = quantiles_ms(n / 1e3 for n in range(1, 101))
    assert hundred == {"p50": 50.0, "p90": pytest.approx(90.0), "p99": pytest.approx(99.0)}


def test_loads_are_the_same_again_and_share_what_they_say() -> None:
    load = MadeUpLoad(5, 20, 7, 12)
    assert load.of(100) == load.of(100)
    prompts = [request.prompt for request in load.of(100)]
    assert len({prompt[:12] for prompt in prompts}) == 1 and len(set(prompts)) == 5
    with pytest.raises(ValueError, match="cannot share 20"):
        MadeUpLoad(5, 20, 7, 20)
    recorded = [
        TraceRequest(5.0, 10, 3, (7, 8), 4),
        TraceRequest(3.0, 10, 0, (7, 9), 4),
    ]
    first, second = of_trace(recorded, 100, speed=2.0)
    assert (first.due_seconds, second.due_seconds) == (0.0, 1.0)
    assert (first.max_tokens, second.max_tokens) == (1, 3)
    assert first.prompt[:4] == second.prompt[:4] and first.prompt[4:8] != second.prompt[4:8]
    assert len(first.prompt) == len(second.prompt) == 10
    assert fitting([first, second], 12) == (first,)
    workload = of_workload(make_workload("w2", 100), 100)
    assert len(workload) == 3 and len({request.prompt[0] for request in workload}) == 3
    words = as_text(first).prompt
    assert isinstance(words, str) and len(words.split()) == 10


def test_poisson_times_have_the_rate_and_the_spread() -> None:
    due = [one.due_seconds for one in at_poisson_times(requests(4001), 4.0)]
    gaps = [after - before for before, after in itertools.pairwise(due)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.1)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(0.0625, rel=0.2)


def test_thirty_schemas_of_which_each_is_one() -> None:
    assert len(set(JSON_SCHEMAS)) == 30
    for schema in JSON_SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(json.loads(schema))
    assert json_task(31)[1] == JSON_SCHEMAS[1] and json_task(31)[0] != json_task(1)[0]


async def test_structured_answers_are_judged_and_plain_ones_have_their_lengths() -> None:
    endpoint = Held(lambda request: "true" if "boolean" in request.schema else "{")
    load = StructuredLoad(30, 4, 2, 60.0)
    ended: list[Outcome] = []
    figures, structured = await measure_structured(endpoint, load, ended.append)
    assert len(ended) == load.total == 32 + 4 * 30
    yes_or_no = JSON_SCHEMAS.index('{"type": "boolean"}')
    assert figures.valid == 2 and figures.requests == 60
    assert [is_valid(outcome) for outcome in structured[:30]].index(True) == (yes_or_no - 32) % 30
    ends = [outcome.ended for outcome in structured]
    assert max(ends[:30]) <= min(outcome.due for outcome in structured[30:]), "rounds in a row"
    plain = [request for request in endpoint.asked if not request.schema]
    assert len(plain) == 60 and {request.max_tokens for request in plain} == {3}
    prompts = [request.prompt for request in endpoint.asked]
    assert len(set(prompts)) == len(prompts)


async def test_an_open_loop_by_rate_and_what_does_not_fit() -> None:
    bench = await measure_serve(
        Held(),
        ServeQuestion(MadeUpLoad(6, 10, 3), rate=2000.0, objective=Objective(ttft_ms=1e9)),
        lambda total: None,
        lambda outcome: None,
    )
    assert (bench.report["loop"], bench.report["rate"]) == ("open", 2000.0)
    assert bench.report["goodput"]["ratio"] == 1.0
    with pytest.raises(ValueError, match="none of 6 requests fits the 64 tokens of held"):
        await measure_serve(
            Held(),
            ServeQuestion(MadeUpLoad(6, 62, 3)),
            lambda total: None,
            lambda outcome: None,
        )
    with pytest.raises(ValueError, match="not both"):
        ServeQuestion("w2", rate=1.0, concurrency=1)


def test_the_command_tells_in_json_in_words_and_in_a_picture(
    dispatcher: Any, spell: Any, served_address: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    dispatcher.script = [spell("ab"), spell("c"), FinishReason.LENGTH]
    picture = tmp_path / "load.svg"
    common = ["bench", "serve", "--address", served_address]
    ran = CliRunner().invoke(
        app,
        [
            *common,
            "--workload",
            "smoke",
            "--slo-ttft-ms",
            "60000",
            "--json",
            "--plot",
            str(picture),
        ],
    )
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert (report["completed"], report["output_tokens"], report["errors"]) == (4, 12, {})
    assert (report["loop"], report["concurrency"], report["structured"]) == ("closed", 4, None)
    assert report["goodput"]["ratio"] == 1.0
    assert "<svg" in picture.read_text(encoding="utf-8")
    told = CliRunner().invoke(
        app, [*common, "--prompt-tokens", "8", "--output-tokens", "3", "--rate", "500"]
    )
    assert told.exit_code == 0, told.output
    assert "64 of 64 requests" in told.stdout and "open loop, 500 a second" in told.stdout
    assert "between tokens" in told.stdout


def test_the_command_replays_a_trace_and_says_what_it_left_out(
    dispatcher: Any, spell: Any, served_address: str, tmp_path: Path
) -> None:
    dispatcher.script = [spell("a"), FinishReason.LENGTH]
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"arrival_s": 0.01 * number, "prompt_tokens": length, "output_tokens": 1}
        for number, length in enumerate((8, 9, 4000, 10, 11))
    ]
    trace.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    words = ["bench", "serve", "--address", served_address, "--trace", str(trace), "--json"]
    ran = CliRunner().invoke(app, [*words, "--requests", "4", "--speed", "2"])
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert (report["completed"], report["skipped"], report["loop"]) == (3, 1, "open")
    assert {len(spec.prompt_token_ids) for _, spec in dispatcher.submitted} == {8, 9, 10}


def test_the_command_says_what_is_wrong(dispatcher: Any, served_address: str) -> None:
    common = ["bench", "serve", "--address", served_address]
    for words, code, said in (
        (["--workload", "w9"], 2, "known are"),
        (["--rate", "1", "--concurrency", "2"], 2, "not both"),
        (["--structured", "--rate", "1"], 2, "leave out --rate"),
        (["--structured", "--prompt-tokens", "8"], 2, "give one of"),
        (["--model", "large"], 1, "NOT_FOUND"),
    ):
        ran = CliRunner().invoke(app, [*common, *words])
        assert ran.exit_code == code, ran.output
        assert said in ran.output
    dispatcher.refusal = RuntimeError("broken")
    ran = CliRunner().invoke(app, [*common, "--workload", "smoke", "--json"])
    assert ran.exit_code == 1
    assert json.loads(ran.stdout.splitlines()[0])["errors"] == {"INTERNAL": 4}
