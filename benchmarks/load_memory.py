"""Private memory of each rank while a model is loaded on several.

Writes a random model of the asked size, has each rank load its part in a process of its own, and
watches what only that process holds (USS). The base is what it holds before, with everything
imported. Prints one JSON object; exits with 1 when a rank's growth is over its limit.

    python benchmarks/load_memory.py --gigabytes 2 --ranks 2 --limit 1.1

The limit is in gigabytes (10^9 bytes) for each rank, pools of KV blocks left out: there are none.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from blockyard.workers.collectives import Communicator
from blockyard.workers.loader import load_model
from blockyard.workers.progress import SilentProgress

GIGABYTE = 10**9
LOOK_SECONDS = 0.02
CONTEXT = 512


def write_model(directory: Path, gigabytes: float) -> int:
    """A random Llama in float32, in files of one layer each; returns its bytes."""
    hidden, columns, vocabulary = 1024, 2816, 32000
    layer_weights = hidden * (hidden * 2 + hidden // 2 + columns * 3)
    rest = 2 * vocabulary * hidden
    layers = max(1, round((gigabytes * GIGABYTE / 4 - rest) / layer_weights))
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=columns,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(directory)
    with torch.device("meta"):
        shapes = {
            name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()
        }
    files: dict[str, list[str]] = {}
    for name in shapes:
        parts = name.split(".")
        files.setdefault(parts[2] if parts[1] == "layers" else "rest", []).append(name)
    total = 0
    index = {}
    for number, names in enumerate(files.values()):
        file = f"model-{number:05d}.safetensors"
        tensors = {name: torch.randn(shapes[name]) * 0.02 for name in names}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(names, file))
        total += sum(tensor.nbytes for tensor in tensors.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    (directory / "model.safetensors.index.json").write_text(text)
    return total


def load(pipe: Connection, directory: Path, rank: int, ranks: int) -> None:
    """One rank: says that it is ready, loads when told, says when it is done, keeps the model."""
    torch.set_num_threads(1)
    pipe.send("ready")
    pipe.recv()
    model = load_model(
        directory,
        torch.device("cpu"),
        "float32",
        CONTEXT,
        SilentProgress(),
        Communicator(rank, ranks),
    )
    pipe.send(model.weight_bytes)
    pipe.recv()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1.1, help="gigabytes for each rank")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        total = write_model(Path(folder), asked.gigabytes)
        report = measure(Path(folder), asked.ranks)
    report["model_gigabytes"] = total / GIGABYTE
    report["limit_gigabytes"] = asked.limit
    print(json.dumps(report))
    return int(max(report["peak_growth_gigabytes"]) > asked.limit)


def measure(directory: Path, ranks: int) -> dict[str, Any]:
    """Peak growth of each rank's private memory, and what it keeps, in gigabytes."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        process = context.Process(target=load, args=(theirs, directory, rank, ranks), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(psutil.Process(process.pid))
    for pipe in pipes:
        pipe.recv()
    base = [process.memory_full_info().uss for process in processes]
    for pipe in pipes:
        pipe.send("load")
    peak, weights = list(base), [0] * ranks
    while not all(weights):
        for rank, process in enumerate(processes):
            peak[rank] = max(peak[rank], process.memory_full_info().uss)
            if not weights[rank] and pipes[rank].poll():
                weights[rank] = pipes[rank].recv()
        time.sleep(LOOK_SECONDS)
    kept = [process.memory_full_info().uss for process in processes]
    for pipe in pipes:
        pipe.send("end")
    return {
        "ranks": ranks,
        "weights_gigabytes": [size / GIGABYTE for size in weights],
        "peak_growth_gigabytes": [(p - b) / GIGABYTE for p, b in zip(peak, base, strict=True)],
        "kept_growth_gigabytes": [(k - b) / GIGABYTE for k, b in zip(kept, base, strict=True)],
    }


if __name__ == "__main__":
    sys.exit(main())
