"""Lines of shell in the documents that need no server are run, or what they would use is there."""

import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BLOCKYARD = Path(sys.executable).with_name("blockyard")
TRACE = "docs/examples/chat.jsonl"
Kinds = Callable[[str], list[str]]
VLLM = """vllm:num_requests_running 3.0
vllm:kv_cache_usage_perc 0.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="2000"} 1.0
vllm:request_prompt_tokens_bucket{le="1000"} 100
vllm:request_prompt_tokens_bucket{le="+Inf"} 100
vllm:request_generation_tokens_bucket{le="400"} 100
vllm:request_generation_tokens_bucket{le="+Inf"} 100
"""


def test_every_line_has_a_test(lines: list[str], of_kind: Kinds) -> None:
    assert len(lines) > 25
    assert of_kind("unknown") == []


def test_every_reason_not_to_run_a_line_is_of_one(not_run: dict[str, str], of_kind: Kinds) -> None:
    for begin, reason in not_run.items():
        assert reason and any(line.startswith(begin) for line in of_kind("not run")), begin


def test_files_that_cannot_be_used_here_exist(of_kind: Kinds) -> None:
    for words in map(shlex.split, of_kind("not run")):
        if "-f" in words:
            assert (ROOT / words[words.index("-f") + 1]).is_file()
    for line in of_kind("pip"):
        [extra] = re.findall(r"\[(\w+)\]", line)
        assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.M)


def test_what_a_target_runs(of_kind: Kinds, built_here: dict[str, str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in of_kind("built"):
        script = built_here[line]
        assert f"$(BIN)/python {script}" in makefile
        ran = subprocess.run(
            [sys.executable, script], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        kinds = [found["kind"] for found in yaml.safe_load_all(ran.stdout) if found]
        assert "RayService" in kinds and "Service" in kinds


def test_helm_lines(of_kind: Kinds) -> None:
    for line in of_kind("helm"):
        words = shlex.split(line)[1:]
        if words[0] == "test":
            continue
        release, chart = (word for word in words[1:] if word == "demo" or word.startswith("helm/"))
        values: dict[str, Any] = {}
        for option, value in pairwise(words):
            if option == "--set":
                place, _, text = value.partition("=")
                outer, _, inner = place.partition(".")
                values[outer] = {inner: text}
            if option in ("-f", "--values"):
                values |= yaml.safe_load((ROOT / value).read_text())
        with helm_python.Chart.load(ROOT / chart) as loaded:
            assert loaded.render(values, name=release, namespace="default")


def test_values_shown_in_a_page_are_the_example() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    [shown] = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    assert shown == (ROOT / "docs" / "examples" / "two-models.yaml").read_text()


class Vllm(BaseHTTPRequestHandler):
    """Metrics as a vLLM server has them."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(VLLM)))
        self.end_headers()
        self.wfile.write(VLLM.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.slow
def test_lines_that_need_no_server(of_kind: Kinds, tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), Vllm)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        for line in of_kind("offline"):
            line = line.replace("TRACE", TRACE).replace("memory.png", str(tmp_path / "memory.png"))
            line = line.replace("127.0.0.1:8000", f"127.0.0.1:{server.server_port}")
            line = line.replace("--seconds 180", "--seconds 1")
            if "bench scheduler" in line:
                line += " --steps 200" if "--steps" in _help("bench", "scheduler") else ""
            words = shlex.split(line)[1:]
            ran = subprocess.run(
                [BLOCKYARD, *words], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, line + ran.stderr
            if "--json" in words:
                json.loads(ran.stdout)
            if "--plot" in words:
                assert (tmp_path / "memory.png").stat().st_size > 1000
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _help(*command: str) -> str:
    ran = subprocess.run(
        [BLOCKYARD, *command, "--help"], capture_output=True, text=True, check=True
    )
    return ran.stdout


@pytest.mark.slow
def test_the_figures_of_the_three_wastes_are_what_the_commands_print(lines: list[str]) -> None:
    page = (ROOT / "docs" / "wastes.md").read_text()
    [plan, replay] = [
        json.loads(
            subprocess.run(
                [BLOCKYARD, *shlex.split(line)[1:], "--json"],
                cwd=ROOT, capture_output=True, text=True, check=True,
            ).stdout
        )
        for line in re.findall(r"^\.venv.*", page, re.M)
    ]  # fmt: skip
    text = json.dumps(plan)
    assert re.search(r"\b63\b", text) and re.search(r"\b751\b", text)
    told = replay["allocators"]
    order = ["blocks", "contiguous:max_seq_len", "contiguous:pow2", "contiguous:exact"]
    for title, name, scale in (
        ("requests at once, mean", "mean_running", 1),
        ("given-out slots with tokens", "filled_ratio", 100),
        ("all slots with tokens", "pool_filled_ratio", 100),
        ("answer tokens a second", "output_tokens_per_s", 1),
    ):
        [row] = re.findall(rf"^\| {title} \|(.*\|.*\|.*\|.*)\|$", page, re.M)
        shown = [float(cell.strip(" %").replace(",", "")) for cell in row.split("|")]
        # The policy may change a little; a figure that no longer holds must be written anew.
        assert shown == pytest.approx([told[key][name] * scale for key in order], rel=0.03)
