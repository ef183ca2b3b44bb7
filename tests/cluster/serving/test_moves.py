"""A request leaves one group's actors for another's, and its blocks go with it over the wire."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from blockyard.workers.fake import witness_generate

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("moving_run.py")
PROMPT = list(range(3, 203))
LIMIT, KEPT = 60, 40
BLOCK_SIZE = 16


def test_a_request_moves_with_its_blocks(tmp_path: Path) -> None:
    output = tmp_path / "output"
    # Not a pipe: that would stay open as long as anything that Ray has started.
    with output.open("wb") as said:
        command = [sys.executable, str(PROGRAM), str(tmp_path)]
        ran = subprocess.run(command, stdout=said, stderr=said, check=False, timeout=240)
    assert ran.returncode == 0, output.read_text(errors="replace")
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["tokens"] == witness_generate(PROMPT, LIMIT, 259)
    taker, giver = sorted(told["groups"], key=lambda books: books["blocks_out"])
    assert (taker["brought"], taker["cut_short"], taker["recomputed_tokens"]) == (1, 0, 0)
    assert taker["tokens_in"] >= len(PROMPT) + KEPT - 1
    assert taker["blocks_in"] == giver["blocks_out"] >= taker["tokens_in"] // BLOCK_SIZE
    assert taker["bytes_in"] == giver["bytes_out"] > 0
    assert (giver["blocks_in"], taker["blocks_out"]) == (0, 0)
    assert set(giver["rank_processes"]).isdisjoint(taker["rank_processes"])
