"""`blockyard doctor`: what this machine has, and what Blockyard would use on it."""

import json
import os
import platform
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

__all__ = ["Finding", "doctor", "examine"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact. `advice` says what would make it better; empty where nothing needs to be."""

    name: str
    value: str
    advice: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what computes on this machine: kernels on a GPU, native code on a CPU, or torch."""
    findings = examine()
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}))
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        typer.echo(f"{finding.name:<{width}}  {finding.value}")
        if finding.advice:
            typer.echo(f"{'':<{width}}  -> {finding.advice}")


def examine() -> list[Finding]:
    """Everything that decides how steps are computed; builds native code if it is not built yet."""
    import torch

    from blockyard.workers.catalog import DEFAULT_MODEL, default_cache_dir
    from blockyard.workers.cpu.compiler import INSTRUCTION_SETS, processor_features

    cores = len(os.sched_getaffinity(0))
    features = processor_features()
    has = [one.name for one in INSTRUCTION_SETS if features >= one.features]
    model = default_cache_dir() / DEFAULT_MODEL
    return [
        Finding("Python", platform.python_version()),
        Finding("torch", torch.__version__),
        Finding("processor", f"{platform.machine()}, {cores} cores, {' '.join(has) or 'no AVX2'}"),
        _compiler(),
        _cpu_path(),
        _gpu(),
        Finding(
            "default model",
            str(model) if (model / "config.json").exists() else "not fetched",
            "" if (model / "config.json").exists() else "blockyard model fetch",
        ),
    ]


def _compiler() -> Finding:
    from blockyard.workers.cpu.compiler import NativeUnavailable, find_compiler

    try:
        found = find_compiler()
    except NativeUnavailable as error:
        return Finding("C++ compiler", "none", str(error))
    return Finding("C++ compiler", f"{found.version} ({found.path})")


def _cpu_path() -> Finding:
    from blockyard.workers.cpu.compiler import NativeUnavailable, build_library, choose_instructions
    from blockyard.workers.cpu.library import load_library

    try:
        used, fastest = load_library().instructions, choose_instructions().name
        path = build_library()
    except NativeUnavailable as error:
        return Finding("on the CPU", "plain torch, which is several times slower", str(error))
    advice = ""
    if used != fastest:
        advice = f"{fastest} is not used: the system refuses it, or the compiler does not know it"
    return Finding("on the CPU", f"native code for {used} ({path})", advice)


def _gpu() -> Finding:
    import torch

    from blockyard.workers.backends import kernels_missing

    if not torch.cuda.is_available():
        return Finding("on a GPU", "torch sees none")
    missing = kernels_missing()
    name = torch.cuda.get_device_name()
    if missing is not None:
        return Finding("on a GPU", f"plain torch on {name}", missing)
    return Finding("on a GPU", f"kernels on {name}, decode steps as CUDA graphs")
