"""Every line of shell in README and docs is run by a test, or is of a kind that cannot be here.

`make demo`, `make test` and `make check` are run by CI itself. Lines that ask a server are run
against one of the witness. What `helm` would do, Helm's own engine does. Container engines and
Kubernetes are not here: of those lines only the files are looked at.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import helm_python
import psutil
import pytest
import yaml
from google.protobuf import json_format

from blockyard.protos import cluster_pb2, generation_pb2

ROOT = Path(__file__).resolve().parents[2]
BLOCKYARD = Path(sys.executable).with_name("blockyard")
TRACE = "docs/examples/chat.jsonl"
RUN_BY_CI = {"make demo", "make test", "make check"}
BUILT_HERE = {"make chart": "helm/render.py"}
NOT_HERE = ("docker ", "kubectl ")
NEEDS_A_GPU = (".venv/bin/blockyard serve --device cuda",)
ASKING = ("generate", "ledger", "top")
OFFLINE = ("plan", "measure", "replay", "bench")
VLLM = """vllm:num_requests_running 3.0
vllm:kv_cache_usage_perc 0.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="2000"} 1.0
vllm:request_prompt_tokens_bucket{le="1000"} 100
vllm:request_prompt_tokens_bucket{le="+Inf"} 100
vllm:request_generation_tokens_bucket{le="400"} 100
vllm:request_generation_tokens_bucket{le="+Inf"} 100
"""


def kind_of(line: str) -> str:
    """Which test below runs it."""
    if line in RUN_BY_CI:
        return "ci"
    if line in BUILT_HERE:
        return "built"
    if line.startswith(NOT_HERE):
        return "not here"
    if line in NEEDS_A_GPU:
        return "gpu"
    if match := re.match(r"\.venv/bin/blockyard (\w+)", line):
        if match[1] == "serve":
            return "serve"
        return "asking" if match[1] in ASKING else "offline" if match[1] in OFFLINE else "unknown"
    first = line.split()[0]
    return {"curl": "asking", "grpcurl": "asking", "helm": "helm", ".venv/bin/pip": "pip"}.get(
        first, "unknown"
    )


def test_every_line_has_a_test(lines: list[str]) -> None:
    assert len(lines) > 25
    assert [line for line in lines if kind_of(line) == "unknown"] == []


def test_files_that_cannot_be_used_here_exist(lines: list[str]) -> None:
    for line in lines:
        words = shlex.split(line)
        if words[0] == "docker" and "-f" in words:
            assert (ROOT / words[words.index("-f") + 1]).is_file()
        if kind_of(line) == "pip":
            [extra] = re.findall(r"\[(\w+)\]", line)
            assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.M)


def test_what_a_target_runs(lines: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in filter(lambda line: kind_of(line) == "built", lines):
        script = BUILT_HERE[line]
        assert f"$(BIN)/python {script}" in makefile
        ran = subprocess.run(
            [sys.executable, script], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        kinds = [found["kind"] for found in yaml.safe_load_all(ran.stdout) if found]
        assert "RayService" in kinds and "Service" in kinds


def test_helm_lines(lines: list[str]) -> None:
    for line in filter(lambda line: kind_of(line) == "helm", lines):
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
def test_lines_that_need_no_server(lines: list[str], tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), Vllm)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        for line in filter(lambda line: kind_of(line) == "offline", lines):
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def served(line: str, port: int, folder: Path) -> Iterator[None]:
    """The server of a line that starts one, with the witness in place of the model."""
    words = [*shlex.split(line)[1:], "--model", "witness", "--port", str(port), "--blocks", "512"]
    output = folder / "output"
    with output.open("wb") as writer:
        process = subprocess.Popen([BLOCKYARD, *words], stdout=writer, stderr=writer)
    try:
        deadline = time.monotonic() + 180
        while "\nserving " not in "\n" + output.read_text(errors="replace"):
            assert process.poll() is None and time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0, output.read_text()
    finally:
        if process.poll() is None:
            family = psutil.Process(process.pid).children(recursive=True)
            for member in [psutil.Process(process.pid), *family]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()


def grpcurl(line: str, port: int) -> None:
    """The call that a line of `grpcurl` makes."""
    words = shlex.split(line)
    service, _, method = words[-1].rpartition("/")
    file = generation_pb2 if service.endswith("Generation") else cluster_pb2
    found = file.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name[method]
    request = getattr(file, found.input_type.name)()
    if "-d" in words:
        json_format.Parse(words[words.index("-d") + 1], request)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        kind = channel.unary_stream if found.server_streaming else channel.unary_unary
        call = kind(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(file, found.output_type.name).FromString,
        )
        answer = call(request, timeout=100)
        assert list(answer) if found.server_streaming else answer.ByteSize()


def curl(line: str) -> None:
    """The call that a line of `curl` makes; it must succeed and have something to say."""
    words = shlex.split(line)
    [url] = [word for word in words if word.startswith("http://")]
    body = words[words.index("-d") + 1].encode() if "-d" in words else None
    headers = dict([words[words.index("-H") + 1].split(": ")]) if "-H" in words else {}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=100) as answer:
        said = answer.read()
    assert b"blockyard_blocks" in said if url.endswith("/metrics") else json.loads(said)


def openai_snippets() -> list[str]:
    found = [
        snippet
        for document in (ROOT / "README.md", ROOT / "docs" / "api.md")
        for snippet in re.findall(r"^```python\n(.*?)^```", document.read_text(), re.M | re.S)
    ]
    return [snippet for snippet in found if "OpenAI(" in snippet]


@pytest.mark.slow
@pytest.mark.ray
def test_lines_that_ask_a_server(lines: list[str], tmp_path: Path) -> None:
    [start] = [line for line in lines if kind_of(line) == "serve" and "--metrics-port" in line]
    port, ports = free_port(), {"9464": str(free_port()), "8000": str(free_port())}
    environment = {**os.environ, "BLOCKYARD_ADDRESS": f"127.0.0.1:{port}"}

    def here(text: str) -> str:
        for told, ours in ports.items():
            text = re.sub(rf"\b{told}\b", ours, text)
        return text

    with served(here(start), port, tmp_path):
        for snippet in openai_snippets():
            ran = subprocess.run(
                [sys.executable, "-c", here(snippet).replace("smollm2-135m", "witness")],
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, snippet + ran.stderr
        for line in filter(lambda line: kind_of(line) == "asking", lines):
            words = shlex.split(line)
            if words[0] == "grpcurl":
                grpcurl(line, port)
                continue
            if words[0] == "curl":
                curl(here(line))
                continue
            # The witness does not end by itself; an answer of any length will do.
            more = ["--max-tokens", "20"] if words[1] == "generate" else []
            if words[1] == "top":
                more = ["--url", here("http://127.0.0.1:8000")]
            ran = subprocess.run(
                [BLOCKYARD, *words[1:], *more],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert ran.returncode == 0, line + ran.stderr
            assert ran.stdout.strip(), line


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
