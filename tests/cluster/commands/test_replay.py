"""Replays through the command: by JSON, on recorded traces if they are there; what people see."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from blockyard.cluster.capacity.trace_reader import read_trace
from blockyard.cluster.cli import app

ROOT = Path(__file__).resolve().parents[3]
SHAPE = "--shape 32,8,128,8e9"
LINES = "\n".join(
    json.dumps(
        {
            "arrival_s": index / 50,
            "prompt_tokens": 300 + 40 * (index % 20),
            "output_tokens": 20 + index % 60,
            "prefix_ids": [index % 4],
        }
    )
    for index in range(80)
)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "arrivals.jsonl"
    path.write_text(LINES, encoding="utf-8")
    return path


def recorded(name: str) -> Path:
    path = ROOT.parent / "shared" / "traces" / name
    if not path.is_file():
        pytest.skip(f"the recorded trace {name} is not beside the repository in shared/traces")
    return path


def run(trace: Path, arguments: str) -> Result:
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
    return runner.invoke(app, ["replay", str(trace), *arguments.split()])


def answer(trace: Path, arguments: str) -> Any:
    result = run(trace, f"{SHAPE} {arguments} --json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def cached_by_ids(trace: Path, limit: int, block_size: int = 16) -> int:
    """Tokens that full blocks of earlier prompts hold, straight from the prefix ids."""
    known: dict[int, int] = {}
    total = 0
    for request in read_trace(trace)[:limit]:
        found = 0
        computed = request.prompt_tokens // block_size * block_size
        for index, piece in enumerate(request.prefix_ids):
            here = min(512, computed - 512 * index)
            common = min(here, known.get(piece, 0))
            found += common
            if common < 512:
                break
        for index, piece in enumerate(request.prefix_ids):
            known[piece] = max(known.get(piece, 0), min(512, computed - 512 * index))
        total += min(found, (request.prompt_tokens - 1) // block_size * block_size)
    return total


def test_the_object_has_what_the_issue_names(lines: Path) -> None:
    got = answer(lines, "--groups 2 --max-seq-len 2048 --kv-memory 2e9")
    assert set(got["allocators"]) == {
        "blocks",
        "contiguous:max_seq_len",
        "contiguous:pow2",
        "contiguous:exact",
    }
    assert got["requests"] == 80
    assert got["simulated_s"] > 1.5
    assert got["wall_s"] > 0
    for figures in got["allocators"].values():
        assert figures["finished"] == 80
        assert figures["refused"] == 0
        assert 0 < figures["ttft_s"]["p50"] <= figures["ttft_s"]["p99"]
        assert 0 < figures["pool_filled_ratio"] <= figures["filled_ratio"] < 1
        assert 0 < figures["mean_running"] <= figures["peak_running"]
        assert figures["preemptions"] >= 0
    assert got["allocators"]["blocks"]["prefix_hit_ratio"] > 0.5
    assert got["setup"]["blocks_per_group"] == 2_000_000_000 // (131_072 * 16)


def test_time_can_be_pressed_together(lines: Path) -> None:
    slow, fast = (
        answer(lines, f"--allocator blocks --speed {speed}")["allocators"]["blocks"]
        for speed in (1, 4)
    )
    assert fast["simulated_s"] < slow["simulated_s"]
    assert fast["mean_running"] > slow["mean_running"]


def test_preemption_is_chosen(lines: Path) -> None:
    tight = "--allocator blocks --kv-memory 4e7 --max-seq-len 300 --saturate"
    short = lines.with_name("short.jsonl")
    entries = [{"arrival_s": 0, "prompt_tokens": 20, "output_tokens": 200} for _ in range(60)]
    short.write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    kinds = {
        policy: answer(short, f"{tight} --preemption {policy} --host-memory {host}")
        for policy, host in (("recompute", "1GB"), ("swap", "1GB"))
    }
    swap, recompute = (
        kinds[policy]["allocators"]["blocks"]["preemptions_by_kind"]
        for policy in ("swap", "recompute")
    )
    assert swap["swapped"] > 0
    assert recompute["recomputed"] > 0 == recompute["swapped"]


def test_people_see_columns_within_80_characters(lines: Path) -> None:
    result = run(lines, f"{SHAPE} --max-seq-len 2048 --kv-memory 2e9")
    assert result.exit_code == 0, result.stderr
    assert "filled of allocated" in result.stdout
    assert "times as many as contiguous:max_seq_len" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_groups_may_follow_the_load(lines: Path) -> None:
    got = answer(lines, "--groups 1:3 --start-seconds 0.5 --allocator blocks --kv-memory 5e8")
    scaling = got["allocators"]["blocks"]["scaling"]
    assert (got["setup"]["min_groups"], got["setup"]["groups"]) == (1, 3)
    assert 1 < scaling["peak_groups"] <= 3
    assert 1.0 < scaling["mean_groups"] < scaling["peak_groups"]
    shown = run(lines, f"{SHAPE} --groups 1:3 --allocator blocks").stdout
    assert "1 to 3 groups" in shown and "groups: most" in shown


def test_traffic_may_be_made_up() -> None:
    made_up = "--synthetic requests=60,rate=20,prompt=200,output=30 --allocator blocks"
    result = CliRunner().invoke(app, ["replay", *f"{SHAPE} {made_up} --json".split()])
    assert result.exit_code == 0, result.stderr
    got = json.loads(result.stdout)
    assert got["requests"] == got["allocators"]["blocks"]["finished"] == 60
    assert got["allocators"]["blocks"]["simulated_s"] == pytest.approx(3.0, rel=0.5)


def test_a_device_file(lines: Path, tmp_path: Path) -> None:
    device = tmp_path / "card.json"
    values = {
        "memory_bytes": 40e9,
        "memory_bytes_per_second": 1e12,
        "operations_per_second": 1e14,
        "link_bytes_per_second": 1e10,
    }
    device.write_text(json.dumps(values), encoding="utf-8")
    got = answer(lines, f"--gpu {device} --allocator blocks")
    assert got["setup"]["device"] == "card.json"
    assert got["setup"]["blocks_per_group"] == (40_000_000_000 - 16_000_000_000 - 2 * 2**30) // (
        131_072 * 16
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "--model or --shape"),
        (f"{SHAPE} --allocator best", "contiguous:pow2"),
        (f"{SHAPE} --gpu h300", "h200, a100"),
        (f"{SHAPE} --format csv", "azure, mooncake, jsonl"),
        (f"{SHAPE} --groups 3:2", "min <= max"),
        (f"{SHAPE} --groups many", "MIN:MAX"),
        (f"{SHAPE} --groups 0", "1 or more"),
        (f"{SHAPE} --groups 1:2 --saturate", "recorded times"),
        (f"{SHAPE} --synthetic requests=2,rate=1", "give a trace, or --synthetic"),
        (f"{SHAPE} --format azure", "TIMESTAMP"),
        (f"{SHAPE} --preemption drop", "swap or recompute"),
        (f"{SHAPE} --speed 0", "above 0"),
        (f"{SHAPE} --saturate --one-at-a-time", "not both"),
        (f"{SHAPE} --kv-memory 1000", "one block"),
        (f"{SHAPE} --plot nowhere/out.png", "no such folder"),
        (f"{SHAPE} --plot out.txt", "png"),
    ],
)
def test_misuse_is_told(lines: Path, arguments: str, message: str) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    result = run(lines, arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_memory_over_time_is_drawn(lines: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "out.png"
    result = run(lines, f"{SHAPE} --max-seq-len 2048 --kv-memory 2e9 --plot {plot}")
    assert result.exit_code == 0, result.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_cached_tokens_are_those_of_the_hash_ids() -> None:
    trace = recorded("mooncake_conversation.jsonl")
    got = answer(trace, "--allocator blocks --limit 250 --one-at-a-time --kv-memory unbounded")
    expected = cached_by_ids(trace, 250)
    assert expected > 100_000
    assert got["allocators"]["blocks"]["prefix_hit_tokens"] == expected


@pytest.mark.slow
def test_chat_traffic_at_saturation_fills_blocks_and_not_reservations() -> None:
    trace = recorded("azure_conv_2023.csv")
    got = answer(trace, "--saturate --max-seq-len 8192 --allocator blocks,contiguous:max_seq_len")[
        "allocators"
    ]
    blocks, reserved = got["blocks"], got["contiguous:max_seq_len"]
    assert blocks["filled_ratio"] > 0.96
    assert blocks["pool_filled_ratio"] > 0.9
    assert blocks["mean_running"] >= 2.5 * reserved["mean_running"]
    assert blocks["refused"] == reserved["refused"] == 1
    assert blocks["finished"] == reserved["finished"] == 19_365
