"""Known cases through the command, by JSON; and what people see, within 80 columns."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from blockyard.cluster.cli import app

MODEL_7B = "--shape 32,32,128,6738415616"
MODEL_13B = "--shape 40,40,128,13015864320"
MODEL_8B = "--shape 32,8,128,8e9"


def run(arguments: str) -> Result:
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
    return runner.invoke(app, ["plan", *arguments.split()])


def answer(arguments: str) -> Any:
    result = run(f"{arguments} --json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value[name]
    return value


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            f"{MODEL_13B} --max-seq-len 2048 --requests 32",
            {"kv_bytes_per_token": 819_200, "kv_bytes_contiguous": 53_687_091_200},
        ),
        (
            f"{MODEL_7B} --max-seq-len 1024 --requests 16 --lengths mean=180",
            {"kv_bytes_contiguous": 8_589_934_592, "contiguous.filled_ratio": 0.17578125},
        ),
        (
            f"{MODEL_7B} --max-seq-len 1024 --requests 48 --lengths mean=180",
            {"kv_bytes_contiguous": 25_769_803_776},
        ),
        (
            f"{MODEL_13B} --max-seq-len 2048 --requests 8",
            {"kv_bytes_contiguous": 13_421_772_800},
        ),
        (
            f"{MODEL_13B} --max-seq-len 4096 --requests 8",
            {"kv_bytes_contiguous": 26_843_545_600},
        ),
        (f"{MODEL_7B} --max-seq-len 2048", {"kv_bytes_contiguous": 1_073_741_824}),
        (f"{MODEL_8B} --max-seq-len 1000 --requests 1", {"kv_bytes_contiguous": 131_072_000}),
        (
            f"{MODEL_8B} --max-seq-len 4096 --kv-memory 50e9 --lengths mean=800",
            {
                "contiguous.concurrency": 93,
                "contiguous.reservation_waste": 0.8046875,
                "blocks.concurrency": 476,
                "blocks.total_blocks": 23_841,
                "blocks.blocks_per_request": 50,
                "findings": ["reservation_waste"],
            },
        ),
        (
            f"{MODEL_8B} --max-seq-len 4096 --kv-memory 50GiB --lengths mean=800,p99=800",
            {"contiguous.concurrency": 100, "blocks.concurrency": 512},
        ),
        (
            "--outputs 10,50,100,200 --batching static",
            {
                "batching.static.iterations": 200,
                "batching.static.useful_ratio": 0.45,
                "batching.continuous.useful_ratio": 1.0,
                "findings": ["static_batching"],
            },
        ),
        ("--outputs 10,50,100,200 --batching continuous", {"findings": []}),
        (
            "--gpu-memory 40GB --shape 32,8,128,8e9 --max-seq-len 2048 "
            "--free 6GB --largest-hole 2.5GB --request 4GB",
            {
                "hole.contiguous_serves": False,
                "hole.blocks_serve": True,
                "hole.external_fragmentation": pytest.approx(0.583, abs=0.001),
                "findings": ["out_of_memory_risk"],
            },
        ),
        (
            f"{MODEL_13B} --kv-memory 13421772800 --max-seq-len 2048 --requests 24 "
            "--lengths mean=680",
            {
                "total_slots": 16_384,
                "contiguous.concurrency": 8,
                "contiguous.refused": 16,
                "contiguous.filled_slots": 5440,
                "blocks.concurrency": 23,
                "blocks.total_blocks": 1024,
                "blocks.needed_blocks": 1032,
            },
        ),
        (
            f"{MODEL_13B} --max-seq-len 4096 --requests 8 --lengths mean=800 "
            "--largest-hole 3.2e9 --free 5e9",
            {
                "hole.request_bytes": 3_355_443_200,
                "hole.contiguous_serves": False,
                "hole.blocks_serve": True,
                "contiguous.filled_bytes": 5_242_880_000,
                "findings": ["out_of_memory_risk", "reservation_waste"],
            },
        ),
        (
            # What the reservations leave is what is free, where the memory is known.
            f"{MODEL_13B} --max-seq-len 4096 --requests 8 --lengths mean=800 "
            "--largest-hole 3.2e9 --kv-memory 30843545600",
            {"hole.free_bytes": 4_000_000_000, "hole.blocks_serve": True},
        ),
        (
            f"{MODEL_13B} --max-seq-len 4096 --requests 8 --largest-hole 3.2e9",
            {"hole.free_bytes": None, "hole.contiguous_serves": False, "hole.blocks_serve": None},
        ),
        (
            "--free 2GB --largest-hole 300MB --request 800MB",
            {
                "hole.external_fragmentation": pytest.approx(0.85),
                "hole.contiguous_serves": False,
                "hole.blocks_serve": True,
            },
        ),
        (
            f"{MODEL_13B} --requests 1000 --shared-prefix 512",
            {
                "shared_prefix.stored_bytes": 419_430_400,
                "shared_prefix.unshared_bytes": 419_430_400_000,
            },
        ),
        (
            f"{MODEL_8B} --gpu-memory 80GiB --gpus 8 --tp 2 --max-seq-len 2048 "
            "--lengths mean=680,p99=1850 --allowance 0B",
            {
                "groups": 4,
                "kv_memory_bytes": 2 * (80 * 2**30 - 8_000_000_000),
                "kv_bytes_per_token": 131_072,
                "kv_bytes_per_token_per_rank": 65_536,
            },
        ),
        (
            f"{MODEL_8B} --weights fp8 --kv fp8 --gpu-memory 80GiB --max-seq-len 2048 "
            "--allowance 1GiB",
            {"kv_bytes_per_token": 65_536, "kv_memory_bytes": 79 * 2**30 - 8_000_000_000},
        ),
    ],
)
def test_known_cases(arguments: str, expected: dict[str, object]) -> None:
    found = answer(arguments)
    assert {path: at(found, path) for path in expected} == expected


def test_the_cluster_counts_every_group() -> None:
    found = answer(f"{MODEL_8B} --kv-memory 50e9 --gpus 8 --max-seq-len 4096 --lengths mean=800")
    assert found["cluster"] == {"contiguous_concurrency": 744, "blocks_concurrency": 3808}
    assert found["alternatives"][0]["blocks_concurrency"] == 3808


def test_without_lengths_nothing_is_said_of_utilisation() -> None:
    found = answer(f"{MODEL_8B} --kv-memory 50e9 --max-seq-len 4096")
    assert "filled_ratio" not in found["contiguous"]
    assert "reservation_waste" not in found["contiguous"]
    assert (found["findings"], found["contiguous"]["concurrency"]) == ([], 93)
    assert "--lengths" in found["verdict"]


@pytest.mark.parametrize(
    "arguments",
    [
        f"{MODEL_13B} --kv-memory 13421772800 --max-seq-len 131072 --lengths mean=680,p99=1850 "
        "--requests 1000000 --shared-prefix 512 --outputs 10,50 --free 6GB --largest-hole 2GB",
        f"{MODEL_8B} --gpu-memory 10000GiB --gpus 1024 --tp 4 --max-seq-len 2048 --lengths mean=5",
        "--shape 80,8,128,70e9 --kv-memory 2e9 --tp 1 --gpus 4 --max-seq-len 2048",
    ],
)
def test_what_people_see_fits_80_columns(arguments: str) -> None:
    result = run(arguments)
    assert result.exit_code == 0, result.stderr
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "verdict" in result.stdout
    assert "…" not in result.stdout


def test_people_see_the_figures_and_the_assumptions() -> None:
    shown = run(
        f"{MODEL_8B} --gpu-memory 80GiB --max-seq-len 4096 --lengths mean=800,p99=1200 "
        "--outputs 10,50,100,200 --free 6GB --largest-hole 2.5GB --request 4GB"
    ).stdout
    assert "131,072 B" in shown
    assert "contiguous refuses" in shown
    assert "200 iterations, 45% of the work useful" in shown
    assert "log-normal" in shown
    assert "a guess" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "nothing to plan"),
        ("--shape 1,2,3", "layers,kv_heads,head_dim,params"),
        (f"{MODEL_8B} --model x", "not both"),
        (f"{MODEL_8B} --kv-memory 50e9", "give --max-seq-len"),
        (f"{MODEL_8B} --requests 5", "give --max-seq-len"),
        ("--kv-memory 50e9", "whose memory"),
        (f"{MODEL_8B} --kv-memory 50gigs --max-seq-len 10", "80GiB"),
        (f"{MODEL_8B} --kv fp7 --max-seq-len 10 --requests 1", "fp7"),
        (f"{MODEL_8B} --requests 1 --max-seq-len 10 --lengths p99=3", "mean=680,p99=1850"),
        (f"{MODEL_8B} --requests 1 --max-seq-len 10 --lengths mean=30", "over the limit of 10"),
        (f"{MODEL_8B} --gpu-memory 16GB --max-seq-len 10", "leave no room for KV"),
        (f"{MODEL_8B} --tp 4 --gpus 2 --max-seq-len 10 --requests 1", "lower --tp"),
        ("--free 1GB --largest-hole 2GB --request 1GB", "swap --free and --largest-hole"),
        ("--largest-hole 2GB", "give --request"),
        ("--free 2GB --request 1GB", "give --largest-hole"),
        ("--outputs 1,x", "10,50,100,200"),
        ("--outputs 1 --batching dynamic", "static or continuous"),
        ("--model no-such-model", "no model 'no-such-model'"),
    ],
)
def test_misuse_is_one_line_that_says_what_to_do(arguments: str, message: str) -> None:
    result = run(arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("blockyard: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"


def recorded(name: str) -> Path:
    if not (TRACES / name).is_file():
        pytest.skip(f"the recorded trace {name} is not beside this repository")
    return TRACES / name


def test_lengths_of_the_azure_trace() -> None:
    trace = recorded("azure_conv_2023.csv")
    found = answer(f"{MODEL_8B} --gpu-memory 80GiB --max-seq-len 8192 --lengths {trace}")
    assert found["mean_length"] == pytest.approx(1365.17, abs=0.01)  # 14,089 tokens left out
    assert found["blocks"]["filled_ratio"] > 0.99
    assert found["gain"] > 5.5
    assert "19,366 requests" in found["assumptions"][0]
    assert "1 of them are over the limit" in found["assumptions"][0]


def test_lengths_of_the_mooncake_trace() -> None:
    trace = recorded("mooncake_conversation.jsonl")
    found = answer(f"{MODEL_8B} --gpu-memory 80GiB --max-seq-len 131072 --lengths {trace}")
    assert found["mean_length"] == pytest.approx(12_377.68, abs=0.01)
    assert found["gain"] > 8


def test_a_draft_model_takes_its_part_of_every_block_and_of_every_gpu() -> None:
    asked = "--model llama-3-70b --tp 4 --gpu-memory 80GiB --max-seq-len 8192 --lengths mean=1000"
    alone, both = answer(asked), answer(f"{asked} --draft-model llama-3-8b")
    of_each = 2 * 2 * 8 * 128  # keys and values, bytes, heads, their size
    assert alone["kv_bytes_per_token"] == 80 * of_each
    assert both["kv_bytes_per_token"] == (80 + 32) * of_each
    assert both["kv_bytes_per_token_per_rank"] == (80 + 32) * of_each // 4
    assert both["blocks"]["block_bytes"] == 16 * (80 + 32) * of_each
    assert both["weight_bytes"] - alone["weight_bytes"] == 2 * 8_030_261_248
    assert both["blocks"]["concurrency"] < alone["blocks"]["concurrency"]
    assert any(f"{32 * of_each:,} B of each token" in said for said in both["assumptions"])
    refused = run(f"{asked} --draft-model nobody")
    assert refused.exit_code == 2 and "no model 'nobody'" in refused.stderr
