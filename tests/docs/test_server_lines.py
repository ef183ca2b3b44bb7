"""Lines of shell, and of Python, that ask a server: all are run against one of the witness."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf import json_format

from blockyard.protos import cluster_pb2, generation_pb2

ROOT = Path(__file__).resolve().parents[2]
BLOCKYARD = Path(sys.executable).with_name("blockyard")
Kinds = Callable[[str], list[str]]


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
        process = subprocess.Popen([BLOCKYARD, *words], stdout=writer, stderr=writer, cwd=folder)
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


def together(lines: list[str]) -> str:
    """One line that starts a server with the options of them all."""
    options: dict[str, None] = {}
    for words in map(shlex.split, lines):
        assert words[1] == "serve" and not len(words) % 2, "options of `serve` here have a value"
        for name, value in zip(words[2::2], words[3::2], strict=True):
            options[f"{name} {value}"] = None
    return " ".join(["blockyard serve", *options])


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
def test_lines_that_ask_a_server(of_kind: Kinds, tmp_path: Path, span_collector: Any) -> None:
    start = together(of_kind("serve"))
    port, ports = free_port(), {"9464": free_port(), "8000": free_port()}
    environment = {**os.environ, "BLOCKYARD_ADDRESS": f"127.0.0.1:{port}"}

    def here(text: str) -> str:
        for told, ours in ports.items():
            text = re.sub(rf"\b{told}\b", str(ours), text)
        return text

    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(span_collector())
        ports["4318"] = collector.port
        stack.enter_context(served(here(start), port, tmp_path))
        for snippet in openai_snippets():
            ran = subprocess.run(
                [sys.executable, "-c", here(snippet).replace("smollm2-135m", "witness")],
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, snippet + ran.stderr
        for line in of_kind("asking"):
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
            if words[1] == "bench":
                more = ["--requests", "4"]
                words = shlex.split(here(line))
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
    requests = [
        line
        for line in map(json.loads, (tmp_path / "blockyard.log").read_text().splitlines())
        if line["message"] == "request ended"
    ]
    traces = {span.trace_id.hex(): set[str]() for span in collector.spans}
    for span in collector.spans:
        traces[span.trace_id.hex()].add(span.name)
    assert requests and {line["trace_id"] for line in requests} == set(traces)
    for line in requests:
        whole = {"request", "bind", "engine", "queue", "prefill", "decode"}
        assert line["outcome"] != "length" or traces[line["trace_id"]] == whole
