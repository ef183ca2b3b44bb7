"""`blockyard measure` by hand, from a file, and from a stub of each kind of server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from blockyard.cluster.capacity.measure_report import mean_sample
from blockyard.cluster.capacity.metrics_source import (
    MetricsSource,
    SourceUnreachable,
    collect_samples,
)
from blockyard.cluster.cli import app

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 30.0
vllm:num_requests_running{engine="1",model_name="m"} 10.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="2000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="2000"} 1.0
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{engine="0",le="500.0"} 90.0
vllm:request_prompt_tokens_bucket{engine="0",le="1000.0"} 100.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf"} 100.0
vllm:request_prompt_tokens_count{engine="0"} 100.0
vllm:request_prompt_tokens_sum{engine="0"} 30000.0
# TYPE vllm:request_generation_tokens histogram
vllm:request_generation_tokens_bucket{engine="0",le="200.0"} 99.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf"} 100.0
vllm:request_generation_tokens_count{engine="0"} 100.0
vllm:request_generation_tokens_sum{engine="0"} 9000.0
"""

SGLANG = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 20.0
sglang:num_running_reqs{model_name="m",tp_rank="1"} 20.0
# TYPE sglang:num_used_tokens gauge
sglang:num_used_tokens{model_name="m",tp_rank="0"} 12000.0
sglang:num_used_tokens{model_name="m",tp_rank="1"} 12000.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m",tp_rank="0"} 0.3
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 0.0
"""

TGI = """# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 8
# TYPE tgi_queue_size gauge
tgi_queue_size 3
# TYPE tgi_request_input_length histogram
tgi_request_input_length_bucket{le="500"} 150
tgi_request_input_length_bucket{le="+Inf"} 150
tgi_request_input_length_sum 60000
tgi_request_input_length_count 150
# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{le="300"} 150
tgi_request_generated_tokens_bucket{le="+Inf"} 150
tgi_request_generated_tokens_sum 30000
tgi_request_generated_tokens_count 150
"""


class StubServer:
    """Answers each path with texts in turn, the last one for ever."""

    def __init__(self) -> None:
        self.answers: dict[str, list[str | int]] = {}
        self.asked: list[str] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub.asked.append(self.path)
                texts = stub.answers.get(self.path, [404])
                text = texts.pop(0) if len(texts) > 1 else texts[0]
                content = text.encode() if isinstance(text, str) else b""
                self.send_response(200 if isinstance(text, str) else text)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def stub() -> Iterator[StubServer]:
    server = StubServer()
    yield server
    server.close()


def run(*arguments: str) -> Result:
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
    return runner.invoke(app, ["measure", *arguments])


def answer(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


BY_HAND = (
    *("--capacity-tokens", "16384", "--running", "8"),
    *("--mean-length", "680", "--max-seq-len", "2048"),
)


def test_figures_by_hand() -> None:
    found = answer(*BY_HAND)
    assert found["used_tokens"] == 5440
    assert found["utilisation"] == pytest.approx(0.332, abs=0.001)
    assert found["contiguous"]["concurrency"] == 8
    assert found["contiguous"]["reservation_waste"] == pytest.approx(0.668, abs=0.001)
    assert found["findings"] == ["reservation_waste"]


def test_what_people_see_fits_80_columns() -> None:
    shown = run(*BY_HAND, "--p99-length", "1850").stdout
    assert max(len(line) for line in shown.splitlines()) <= 80
    for words in ("really used", "5,440 tokens", "33.2%", "66.8%", "verdict"):
        assert words in shown


def test_a_vllm_server_with_two_engines(stub: StubServer) -> None:
    stub.answers = {
        "/metrics": [VLLM],
        "/v1/models": ['{"data": [{"id": "m", "max_model_len": 4096}]}'],
    }
    found = answer("--metrics", stub.address, "--seconds", "0")
    assert (found["capacity_tokens"], found["used_tokens"]) == (64_000, 24_000)
    assert (found["running"], found["mean_length"], found["waiting"]) == (40, 600, 2)
    assert (found["max_seq_len"], found["p99_length"]) == (4096, 1200)
    assert found["contiguous"]["concurrency"] == 15
    assert found["findings"] == ["reservation_waste"]
    assert stub.asked == ["/metrics", "/v1/models"]


def test_ranks_of_one_sglang_engine_count_once(stub: StubServer) -> None:
    stub.answers = {"/metrics": [SGLANG]}
    found = answer("--metrics", stub.address, "--seconds", "0", "--max-seq-len", "2000")
    assert (found["capacity_tokens"], found["used_tokens"]) == (40_000, 12_000)
    assert (found["running"], found["mean_length"]) == (20, 600)
    assert any("rounded" in note for note in found["assumptions"])


def test_a_tgi_server_tells_its_limits_elsewhere(stub: StubServer) -> None:
    stub.answers = {
        "/metrics": [TGI],
        "/info": ['{"max_total_tokens": 2048, "max_batch_total_tokens": 16384}'],
    }
    found = answer("--metrics", stub.address, "--seconds", "0")
    assert (found["capacity_tokens"], found["max_seq_len"]) == (16_384, 2048)
    assert (found["mean_length"], found["used_tokens"]) == (500, 4000)
    assert found["p99_length"] == 800
    assert any("half its mean answer" in note for note in found["assumptions"])


def test_a_file_is_one_sample(tmp_path: Path) -> None:
    file = tmp_path / "metrics.txt"
    file.write_text(VLLM, encoding="utf-8")
    found = answer("--metrics", str(file), "--max-seq-len", "4096")
    assert (found["samples"], found["used_tokens"]) == (1, 24_000)
    result = run("--metrics", str(file))
    assert result.exit_code == 2
    assert "vLLM does not tell all that is needed; give --max-seq-len" in result.stderr


class StillTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_samples_are_averaged_over_time(stub: StubServer) -> None:
    later = VLLM.replace("} 30.0", "} 50.0").replace("} 0.5", "} 0.75")
    stub.answers = {"/metrics": [VLLM, 503, later]}
    shares: list[float] = []
    time = StillTime()
    source = MetricsSource(stub.address)
    samples = collect_samples(source, 30.0, 20.0, shares.append, time.clock, time.sleep)
    assert [sample.running for sample in samples] == [40, 60]
    assert time.now == 30.0
    assert shares == [0.0, pytest.approx(2 / 3), 1.0]
    mean = mean_sample(samples)
    assert (mean.running, mean.used_tokens, mean.waiting) == (50, 28_000, 2)


def test_an_interrupt_keeps_what_was_sampled(stub: StubServer) -> None:
    stub.answers = {"/metrics": [VLLM]}

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    source = MetricsSource(stub.address)
    samples = collect_samples(source, 30.0, 1.0, lambda share: None, lambda: 0.0, interrupted)
    assert len(samples) == 1


def test_figures_by_hand_win(stub: StubServer) -> None:
    stub.answers = {"/metrics": [VLLM]}
    found = answer(
        *("--metrics", stub.address + "/metrics", "--seconds", "0"),
        *("--capacity-tokens", "100000", "--max-seq-len", "1024", "--mean-length", "512"),
    )
    assert (found["capacity_tokens"], found["used_tokens"]) == (100_000, 40 * 512)


def test_an_idle_server_is_told(stub: StubServer) -> None:
    idle = VLLM.replace("} 30.0", "} 0.0").replace("} 10.0", "} 0.0")
    stub.answers = {"/metrics": [idle]}
    result = run("--metrics", stub.address, "--seconds", "0", "--max-seq-len", "9")
    assert result.exit_code == 2
    assert "no request ran on vLLM" in result.stderr


def test_a_server_that_is_not_full_is_told_as_such(stub: StubServer) -> None:
    calm = VLLM.replace("} 30.0", "} 3.0").replace("} 10.0", "} 1.0").replace("} 2.0", "} 0.0")
    stub.answers = {"/metrics": [calm]}
    found = answer("--metrics", stub.address, "--seconds", "0", "--max-seq-len", "8192")
    assert any("not full" in note for note in found["assumptions"])


def test_a_server_that_fails_is_told(stub: StubServer) -> None:
    stub.answers = {"/metrics": [VLLM, 503]}
    source = MetricsSource(stub.address)
    time = StillTime()
    with pytest.raises(SourceUnreachable, match="answers 503"):
        collect_samples(source, 60.0, 1.0, lambda share: None, time.clock, time.sleep)
    assert time.now == 3.0
    result = run("--metrics", f"{stub.address}/elsewhere")
    assert result.exit_code == 1
    assert "/elsewhere answers 404" in result.stderr


@pytest.mark.parametrize("place", ["nothing-here", "ftp://host/metrics", "file:///etc/passwd", ""])
def test_places_that_are_no_source_are_refused(place: str) -> None:
    result = run("--metrics", place)
    assert result.exit_code == 1
    assert "http://127.0.0.1:8000" in result.stderr


def test_a_port_where_nobody_listens(stub: StubServer) -> None:
    address = stub.address
    stub.close()
    result = run("--metrics", address.removeprefix("http://"))
    assert result.exit_code == 1
    assert "does not answer" in result.stderr


def test_too_few_figures_are_named() -> None:
    result = run("--capacity-tokens", "16384", "--running", "8")
    assert result.exit_code == 2
    assert "give --mean-length, --max-seq-len" in result.stderr
