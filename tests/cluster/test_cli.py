import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from blockyard.cluster.cli import app
from blockyard.scheduler.request import FinishReason
from blockyard.workers.progress import ProgressReporter

Spell = Callable[[str], list[int]]
Run = Callable[..., Result]


@pytest.fixture
def run(served_address: str) -> Run:
    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner(env={"BLOCKYARD_ADDRESS": served_address}).invoke(
            app, list(arguments), input=stdin
        )

    return invoke


class TestGenerate:
    def test_the_answer_is_streamed_to_stdout(
        self, run: Run, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("good "), spell("day 😀"), FinishReason.STOP]
        result = run("generate", "hello")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "good day 😀\n", "")

    def test_json_is_one_object(self, run: Run, dispatcher: Any, spell: Spell) -> None:
        ids = spell("good é")
        dispatcher.script = [ids[:3], ids[3:], FinishReason.LENGTH]
        answer = json.loads(run("generate", "hello", "--json").stdout)
        assert (answer["text"], answer["token_ids"]) == ("good é", ids)
        assert answer["finish_reason"] == "length"
        prompt = len(dispatcher.submitted[0][1].prompt_token_ids)
        assert answer["usage"] == {
            "prompt_tokens": prompt,
            "cached_tokens": 3,
            "completion_tokens": len(ids),
        }
        assert answer["timings"]["queue_seconds"] == 0.1
        assert answer["timings"]["preemptions"] == 4
        assert answer["timings"]["total_seconds"] > 0

    def test_zeros_are_printed_and_absent_parts_are_not(
        self, run: Run, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("ab"), "hang"]
        answer = json.loads(run("generate", "hello", "--stop", "a", "--json").stdout)
        assert (answer["text"], answer["finish_reason"]) == ("", "stop")
        assert answer["usage"]["cached_tokens"] == 0
        assert "queue_seconds" not in answer["timings"]

    def test_options_arrive(self, run: Run, dispatcher: Any, tokenizer: Any) -> None:
        dispatcher.script = [FinishReason.STOP]
        options = (
            "--model small --max-tokens 9 --temperature 0.5 --top-p 0.25 --top-k 3 --seed 11 "
            "--stop x --stop yy --min-tokens 2 --ignore-eos"
        )
        assert run("generate", "hello", *options.split()).exit_code == 0
        ((model, spec),) = dispatcher.submitted
        assert model == "small"
        sampling = spec.sampling
        assert (sampling.max_tokens, sampling.temperature) == (9, 0.5)
        assert (sampling.top_p, sampling.top_k, sampling.seed) == (0.25, 3, 11)
        assert (sampling.min_tokens, sampling.stop_token_ids) == (2, ())

    def test_chat_system_and_raw_prompts(self, run: Run, dispatcher: Any, tokenizer: Any) -> None:
        dispatcher.script = [FinishReason.STOP]
        run("generate", "hello")
        run("generate", "hello", "--system", "be kind")
        run("generate", "hello", "--raw")
        run("generate", "-", "--raw", stdin="hello")
        chat = [{"role": "user", "content": "hello"}]
        system = [{"role": "system", "content": "be kind"}]
        prompts = [spec.prompt_token_ids for _, spec in dispatcher.submitted]
        assert {spec.sampling.temperature for _, spec in dispatcher.submitted} == {0.0}
        assert prompts == [
            tokenizer.encode_chat(chat),
            tokenizer.encode_chat(system + chat),
            tokenizer.encode_prompt("hello"),
            tokenizer.encode_prompt("hello"),
        ]

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["--top-p", "2"], 1, "INVALID_ARGUMENT: sampling.top_p: is 2.0"),
            (["--model", "nope"], 1, "NOT_FOUND: model: 'nope'"),
            (["--seed", "-1"], 2, "'--seed'"),
            (["--raw", "--system", "x"], 2, "leave out --raw or --system"),
            (["--max-tokens", "many"], 2, "Invalid value"),
        ],
    )
    def test_mistakes_are_told_on_stderr(
        self, run: Run, arguments: list[str], code: int, words: str
    ) -> None:
        result = run("generate", "hello", *arguments)
        assert (result.exit_code, result.stdout) == (code, "")
        assert words in result.stderr
        assert "Traceback" not in result.stderr

    def test_a_late_answer(self, run: Run, dispatcher: Any) -> None:
        dispatcher.script = ["hang"]
        result = run("generate", "hello", "--timeout", "0.05")
        assert result.exit_code == 1
        assert "longer --timeout" in result.stderr

    @pytest.mark.parametrize("command", [["generate", "hello"], ["ledger"]])
    def test_without_a_server_one_line_says_how_to_start_one(self, command: list[str]) -> None:
        result = CliRunner().invoke(app, [*command, "--address", "127.0.0.1:1"])
        assert result.exit_code == 1
        assert "blockyard serve" in result.stderr
        assert len(result.stderr.splitlines()) == 1

    def test_an_interrupt_ends_the_request_and_exits_130(
        self, served_address: str, dispatcher: Any, spell: Spell
    ) -> None:
        dispatcher.script = [spell("a"), "hang"]
        process = subprocess.Popen(
            [sys.executable, "-m", "blockyard", "generate", "hello"],
            env={**os.environ, "BLOCKYARD_ADDRESS": served_address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Shells start background jobs deaf to SIGINT, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None
        assert process.stdout.read(1) == b"a"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert (process.returncode, stderr) == (130, b"")
        assert dispatcher.streams[0].aborts == 1


class TestLedger:
    def test_json_holds_every_count(self, run: Run) -> None:
        (group,) = json.loads(run("ledger", "--json").stdout)["groups"]
        assert group["blocks"] == {"total": 10, "free": 5, "cached": 1, "active": 3, "fenced": 1}
        assert group["slots"] == {"filled": 40, "promised": 2, "empty_tail": 6}
        assert group["requests"] == {"running": 2, "waiting": 1, "parked": 0}
        assert (group["block_size"], group["step"], group["group_id"]) == (16, 77, "group-0")

    def test_no_groups_are_an_empty_list(self, run: Run, dispatcher: Any) -> None:
        dispatcher.books = ()
        assert json.loads(run("ledger", "--json").stdout) == {"groups": []}
        assert run("ledger").stdout == "no groups are up\n"

    def test_the_table_shows_the_group(self, run: Run) -> None:
        result = run("ledger")
        assert result.exit_code == 0
        assert "group-0" in result.stdout
        assert "small on cpu in float32, 16 token slots in a block" in result.stdout


class TestModelFetch:
    def test_it_prints_the_directory(self, tmp_path: Path) -> None:
        result = CliRunner().invoke(app, ["model", "fetch", str(tmp_path)])
        assert (result.exit_code, result.stdout) == (0, f"{tmp_path}\n")

    def test_an_unknown_name_is_told(self) -> None:
        result = CliRunner().invoke(app, ["model", "fetch", "no such model"])
        assert result.exit_code == 1
        assert "neither a directory nor a model" in result.stderr

    def test_progress_goes_to_stderr(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def resolve(name: str, cache: None, progress: ProgressReporter, verify: bool) -> str:
            progress.stage("downloading parts", 100)
            progress.advance(60)
            progress.stage("converting", None)
            progress.advance(5)
            return f"/models/{name}"

        monkeypatch.setattr("blockyard.workers.catalog.resolve_model", resolve)
        result = CliRunner().invoke(app, ["model", "fetch"])
        assert result.stdout == "/models/smollm2-135m\n"
        assert "downloading parts" in result.stderr
        assert "converting" in result.stderr


class TestHelp:
    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ([], ["generate", "ledger", "model", "version"]),
            (["generate"], ["--max-tokens", "--temperature", "--seed", "--json", "--stop"]),
            (["ledger"], ["--json", "--address"]),
            (["model"], ["fetch"]),
            (["model", "fetch"], ["--verify", "smollm2-135m"]),
        ],
    )
    def test_help_names_everything(self, command: list[str], words: list[str]) -> None:
        result = CliRunner(env={"COLUMNS": "120"}).invoke(app, [*command, "--help"])
        assert result.exit_code == 0
        for word in words:
            assert word in result.stdout

    def test_the_version_is_the_packages(self) -> None:
        import blockyard

        assert CliRunner().invoke(app, ["version"]).stdout.strip() == blockyard.__version__
