"""Workloads, floors, and what `blockyard bench e2e`, `bench linear` and `doctor` print."""

import asyncio
import json
import re
from pathlib import Path
from statistics import mean

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from blockyard.cluster.benchmark import linear
from blockyard.cluster.benchmark.end_to_end import (
    Pass,
    decoder_work,
    floor_seconds,
    measure_in_process,
    summarise,
)
from blockyard.cluster.benchmark.local_server import RequestTimes, local_server
from blockyard.cluster.benchmark.workloads import (
    WORKLOADS,
    Workload,
    WorkloadRequest,
    make_workload,
)
from blockyard.cluster.cli import app
from blockyard.cluster.commands import bench_cpu
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.cpu import ceilings
from blockyard.workers.cpu.ceilings import Ceilings, DecoderWork
from blockyard.workers.cpu.compiler import NativeUnavailable
from blockyard.workers.cpu.library import load_library
from blockyard.workers.cpu.packed import WeightStorage
from blockyard.workers.cpu.perplexity import measure_perplexity
from blockyard.workers.description import describe_model

VOCABULARY = 300


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=2,
        pad_token_id=2,
    )
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def native() -> None:
    try:
        load_library()
    except NativeUnavailable as error:
        pytest.skip(f"no native code here: {error}")


def test_workloads_are_what_their_names_say() -> None:
    for name in WORKLOADS:
        assert make_workload(name) == make_workload(name)
    chat = make_workload("w1_c16")
    assert (chat.concurrency, len(chat.requests)) == (16, 64)
    assert make_workload("w1_c32").requests == chat.requests
    assert mean(len(one.prompt) for one in chat.requests) == pytest.approx(150, abs=2)
    assert mean(one.max_tokens for one in chat.requests) == pytest.approx(91, abs=2)
    prefixed = make_workload("w3").requests
    assert len({one.prompt[:512] for one in prefixed}) == 1
    assert len({one.prompt[512:] for one in prefixed}) == 32
    with pytest.raises(ValueError, match="w1_c16"):
        make_workload("w9")


def test_a_shift_changes_first_tokens_alone_and_keeps_what_is_shared() -> None:
    workload = make_workload("w3")
    first, second = workload.shifted(1, 49152), workload.shifted(2, 49152)
    assert len({one.prompt[:512] for one in first.requests}) == 1
    assert first.requests[0].prompt[0] != second.requests[0].prompt[0]
    for one, other in zip(workload.requests, first.requests, strict=True):
        assert one.prompt[1:] == other.prompt[1:]
        assert 32 <= other.prompt[0] < 49152
    assert workload.shifted(0, 49152) == workload


def test_the_floor_counts_shared_tokens_once_and_what_limits_a_step() -> None:
    work = DecoderWork(weight_bytes=1000, layer_operations=10, head_operations=30)
    machine = Ceilings(bytes_per_second=100.0, operations_per_second=5.0)
    one = Workload("", 1, 1, (WorkloadRequest((1,) * 7, 4),))
    # 7 * 10 / 5 for the prompt; three steps, each the longer of 1000 / 100 and 40 / 5.
    assert floor_seconds(one, work, machine) == pytest.approx(14 + 3 * 10)
    shared = tuple(WorkloadRequest((1,) * 7 + (number, number), 4) for number in (2, 3))
    # 7 tokens shared and 2 + 2 of their own; three steps of two rows: 80 / 5 beats 10.
    assert floor_seconds(Workload("", 2, 1, shared), work, machine) == pytest.approx(22 + 3 * 16)


def test_what_a_token_costs(llama: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(llama)
    layers = sum(p.numel() for n, p in model.named_parameters() if "proj" in n)
    work = decoder_work(str(llama), 7)
    assert work == DecoderWork(7, 2 * layers, 2 * VOCABULARY * 64)


def test_figures_of_passes() -> None:
    times = (RequestTimes(1.0, [1.5, 1.75, 2.0]), RequestTimes(1.0, [2.0, 2.25, 3.5]))
    passes = [Pass(3.0, times), Pass(2.0, times), Pass(6.0, times)]
    bench = summarise(make_workload("smoke"), "fp32", "process", passes, 12.0, 1.5)
    assert bench.output_tokens_per_s == 2.0  # 6 tokens in the middle pass
    assert bench.ttft_ms == {"p50": 1000.0, "p99": 1000.0}
    assert bench.itl_ms == {"p50": 250.0, "p99": 1250.0}
    assert bench.floor_ratio == 2.0


def test_a_workload_is_served_whole(llama: Path) -> None:
    workload = make_workload("smoke", VOCABULARY)
    passes, weight_bytes = asyncio.run(
        measure_in_process(describe_model(llama, "llama"), workload, 2, threads=1)
    )
    assert weight_bytes > 0
    for one in passes:
        assert [len(times.tokens) for times in one.requests] == [8, 9, 10, 11]
        for times in one.requests:
            assert times.submitted < times.tokens[0]
            assert times.tokens == sorted(times.tokens)


@pytest.fixture
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_STREAMED_COLUMNS", 64)
    monkeypatch.setattr(ceilings, "_TRIES", 1)
    monkeypatch.setattr(linear, "ROWS", (1, 8))
    monkeypatch.setattr(linear, "_TIMED_SECONDS", 0.0)


def test_end_to_end_as_json_and_in_words(llama: Path, native: None, few_tries: None) -> None:
    words = ["bench", "e2e", "--model", str(llama), "--workload", "smoke", "--weights", "int8"]
    ran = CliRunner().invoke(app, [*words, "--json"])
    assert ran.exit_code == 0, ran.output
    figures = json.loads(ran.stdout)
    assert figures.keys() == {
        *("workload", "weights", "through", "output_tokens_per_s"),
        *("ttft_ms", "itl_ms", "peak_memory_mib", "floor_ratio"),
    }
    assert (figures["workload"], figures["weights"], figures["through"]) == (
        *("smoke", "int8"),
        "process",
    )
    assert figures["output_tokens_per_s"] > 0
    assert figures["peak_memory_mib"] > 100
    told = CliRunner().invoke(app, words).stdout
    assert re.search(r"smoke, weights in int8, through process:\n  [\d.]+ output tokens/s", told)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["e2e", "--workload", "w9"], "w1_c16"),
        (["e2e", "--through", "air"], "grpc"),
        (["linear", "--text", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_what_is_misused_is_named(llama: Path, words: list[str], named: str) -> None:
    ran = CliRunner().invoke(app, ["bench", *words, "--model", str(llama)])
    assert ran.exit_code == 2
    assert named in ran.output


def test_linears_by_rows_and_storage(llama: Path, native: None, few_tries: None) -> None:
    ran = CliRunner().invoke(app, ["bench", "linear", "--model", str(llama), "--json"])
    assert ran.exit_code == 0, ran.output
    figures = json.loads(ran.stdout)
    found = {(one["storage"], one["rows"]) for one in figures["linears"]}
    assert found == {(s, rows) for s in ("fp32", "bf16", "int8", "int4") for rows in (1, 8)}
    assert all(one["ms"] > 0 and one["floor_ratio"] > 0 for one in figures["linears"])
    assert figures["torch_fp32_ms"].keys() == {"1", "8"}
    assert figures["perplexity"] == {}
    bench_cpu.show_linear(linear.measure_linear(llama, 1, None))


def test_perplexity_is_that_of_the_model(llama: Path, native: None) -> None:
    tokens = torch.randint(0, VOCABULARY, (100,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        model = LlamaForCausalLM.from_pretrained(llama)
        expected = float(torch.exp(model(tokens[None], labels=tokens[None]).loss))
    exact = measure_perplexity(llama, tokens.tolist(), WeightStorage.FP32, 1)
    assert exact == pytest.approx(expected, rel=1e-4)
    rough = measure_perplexity(llama, tokens.tolist(), WeightStorage.INT4, 1)
    assert rough != exact
    assert rough == pytest.approx(expected, rel=0.1)


def test_the_doctor_says_what_is_in_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["doctor", "--json"])
    assert ran.exit_code == 0, ran.output
    findings = {one["name"]: one for one in json.loads(ran.stdout)["findings"]}
    assert findings["on the CPU"]["value"].startswith(("native code", "plain torch"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    told = CliRunner().invoke(app, ["doctor"]).stdout
    assert re.search(r"C\+\+ compiler +none\n +-> no C\+\+ compiler .*install one", told)


def test_a_lost_group_ends_the_measurement(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("a fault in the step loop")

    monkeypatch.setattr(Scheduler, "commit", fail)

    async def measured() -> None:
        async with local_server(describe_model(llama, "llama")) as server:
            await asyncio.wait_for(server.serve([WorkloadRequest((5, 6, 7), 4)], 1), 60)

    with pytest.raises(RuntimeError, match="the group was lost"):
        asyncio.run(measured())
