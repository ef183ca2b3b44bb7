"""The kernels of small cases under NVIDIA's compute-sanitizer, where it is installed.

Run as a script it is what the sanitizer watches: the correctness parts on the rehearsal's sizes.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from child import Context

__all__ = ["reported", "sanitizers"]

_TOOLS = ("memcheck", "racecheck")
_TOOL = "compute-sanitizer"
_HOME_TOOL = "bin/compute-sanitizer"
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_PARTS = ("decode", "prefill", "cache_write", "sampling", "scores", "blocks")
_TAIL = 1200


def sanitizers(context: Context) -> None:
    """Each tool in a process of its own, for as long as the part has."""
    tool = _find()
    script = [sys.executable, str(Path(__file__).resolve())]
    if context.device.emulated:
        # What the tools would watch, without them: the emulation has sanitizers of its own.
        ran = _run([*script, "--cpu", "sampling"], context.left())
        context.row(tool="none", watched="sampling", status=ran[0], correct=ran[0] == 0)
        return
    if tool is None:
        context.row(skipped=f"{_TOOL} is not installed")
        return
    for number, name in enumerate(_TOOLS):
        seconds = context.left() / (len(_TOOLS) - number)
        status, output = _run([tool, "--tool", name, *script, *_PARTS], seconds)
        errors = reported(output)
        row: dict[str, Any] = {"tool": name, "status": status, "errors": errors}
        if errors is None:
            row["skipped"] = f"no summary came: {output[-_TAIL:]}"
        else:
            row["correct"] = errors == 0
            if errors:
                row["output"] = output[:_TAIL]
        context.row(**row)


def reported(output: str) -> int | None:
    """How many errors the tool has counted; None where it came to no end."""
    found = _SUMMARY.findall(output)
    return sum(map(int, found)) if found else None


def _find() -> str | None:
    on_path = shutil.which(_TOOL)
    if on_path is not None:
        return on_path
    home = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / _HOME_TOOL
    return str(home) if home.exists() else None


def _run(command: list[str], seconds: float) -> tuple[int | None, str]:
    """Exit status, None when it took too long, and all that was said."""
    # torch's allocator would hide an access past the end of a tensor.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        ran = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=max(1.0, seconds),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return None, (error.stdout or b"").decode(errors="replace") + "\ntook too long"
    return ran.returncode, ran.stdout.decode(errors="replace")


def _watched(arguments: list[str]) -> int:
    """Run parts on small sizes; 1 when a result is wrong."""
    import time

    import correct_attention
    import correct_others
    from device import make_device
    from sizes import REHEARSAL

    cpu = arguments[:1] == ["--cpu"]
    context = Context(make_device(cpu), REHEARSAL, os.open(os.devnull, os.O_WRONLY), {"parts": []})
    wrong = 0
    for name in arguments[cpu:]:
        context.begin(name, time.monotonic() + 600)
        place = correct_attention if hasattr(correct_attention, name) else correct_others
        getattr(place, name)(context)
        wrong += sum(row.get("correct") is False for row in context.rows(name))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(_watched(sys.argv[1:]))
