"""The stubs that are checked in are those that the .proto files give."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None,
    reason="grpcio-tools is not installed; the dev extra has it",
)
def test_generating_anew_changes_nothing(tmp_path: Path) -> None:
    script = ROOT / "protos" / "generate.sh"
    subprocess.run(["sh", str(script), sys.executable, str(tmp_path)], check=True)
    fresh = {path.name: path.read_text() for path in (tmp_path / "blockyard/protos").iterdir()}
    present = {path.name: path.read_text() for path in (ROOT / "protos").glob("*_pb2*.py*")}
    sources = list((ROOT / "protos").glob("*.proto"))
    assert sources
    assert len(fresh) == 3 * len(sources)
    assert fresh == present
