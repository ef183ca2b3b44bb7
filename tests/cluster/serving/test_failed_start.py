"""A deployment that cannot start says why, once, and leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from blockyard.cluster.commands.start import free_port
from blockyard.workers.catalog import DEFAULT_MODEL, default_cache_dir

BLOCKYARD = Path(sys.executable).parent / "blockyard"

pytestmark = pytest.mark.ray


def serve(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [str(BLOCKYARD), "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "tpu"], "device is 'tpu'; known are auto, cpu, cuda"),
        (["--dtype", "int4"], "dtype is 'int4'; known are auto, float32, bfloat16, float16"),
        (["--max-running", "600"], "max_step_tokens (512) must exceed max_running (600)"),
    ],
)
def test_a_bad_option_ends_it_before_ray_is_started(options: list[str], words: str) -> None:
    ended = serve("--model", "witness", *options)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "starting" not in ended.stderr


@pytest.mark.model
@pytest.mark.skipif(
    not (default_cache_dir() / DEFAULT_MODEL / "config.json").exists(),
    reason="the default model is not here; `blockyard model fetch` gets it",
)
def test_a_worker_that_cannot_load_ends_the_start_with_its_own_reason() -> None:
    ended = serve("--kv-memory-mib", "1", "--port", str(free_port()))
    assert ended.returncode == 1
    [last] = [line for line in ended.stderr.splitlines() if line.startswith("blockyard: ")]
    assert "NoRoom: 1.0 MiB were given for KV blocks" in last
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("loading the model") == 1
