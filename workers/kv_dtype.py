"""What keys and values are kept in: as asked, where something reads it, and the shape of that.

Knows which device and backend read which dtype; not how numbers are stored.
"""

import torch

from blockyard.workers.config import KV_DTYPES, WorkerConfig
from blockyard.workers.contract import AttentionShape
from blockyard.workers.kv_layers import KVGeometry

__all__ = ["geometry_of", "resolve_kv_dtype"]

_NAMED = {
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


def resolve_kv_dtype(
    config: WorkerConfig, model_dtype: torch.dtype, device: torch.device
) -> torch.dtype:
    """The dtype of KV blocks that `config.kv_dtype` asks for.

    Raises:
        ValueError: there is no such dtype, or nothing on this device reads it at speed.
    """
    name = config.kv_dtype
    if name == "auto":
        return model_dtype
    if name not in _NAMED:
        raise ValueError(f"kv_dtype is {name!r}; known are {', '.join(KV_DTYPES)}")
    if config.backend == "torch":  # reads them all
        return _NAMED[name]
    kernels = device.type == "cuda" or config.backend == "emulator"
    if kernels and name != "fp8" and _NAMED[name] is not model_dtype:
        raise ValueError(
            f"kv_dtype is {name!r}; kernels read fp8 and the model's own dtype, which is "
            f"{str(model_dtype).removeprefix('torch.')} (auto)"
        )
    if not kernels and name == "fp8":
        raise ValueError("kv_dtype is 'fp8', which kernels read; on a CPU use int8 or bfloat16")
    return _NAMED[name]


def geometry_of(
    config: WorkerConfig,
    shape: AttentionShape,
    model_dtype: torch.dtype,
    device: torch.device,
    beside: KVGeometry | None = None,
) -> KVGeometry:
    """The shape of a model's keys and values in blocks.

    Args:
        config: of the rank.
        shape: of the model's attention, on this rank.
        model_dtype: of the model.
        device: where blocks are.
        beside: that of a draft model in the same blocks.

    Raises:
        ValueError: see `resolve_kv_dtype`.
    """
    return KVGeometry(
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        block_size=config.block_size,
        dtype=resolve_kv_dtype(config, model_dtype, device),
        beside=beside,
    )
