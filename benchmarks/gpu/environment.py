"""What the card and the software are, and how long the kernels take to compile."""

import os
import platform
import subprocess
import time
from dataclasses import asdict
from itertools import product

import numpy as np
import torch
from child import Context
from sizes import Sizes

from blockyard.cuda.block_copy import BLOCK_COPY_BUILD
from blockyard.cuda.cache_write import cache_write_build
from blockyard.cuda.compiler import (
    CompileError,
    compile_all,
    default_cache_dir,
    missing_compiler,
)
from blockyard.cuda.decode import cascade_build, decode_build
from blockyard.cuda.fused_layers import layers_build
from blockyard.cuda.launch import device_arch
from blockyard.cuda.penalties import PENALTIES_BUILD
from blockyard.cuda.prefill import prefill_build, serves_warpgroups
from blockyard.cuda.sampling import logits_build, sampling_build
from blockyard.cuda.sources import Build

__all__ = ["build", "describe"]

_BF16, _FP8 = torch.bfloat16, torch.float8_e4m3fn
_MOST_PROCESSES = 8
_REHEARSED_BUILDS = 3
_REHEARSED_ARCH = "90a"


def describe(context: Context) -> None:
    """Versions, the card, and what it runs at."""
    row = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cpus": len(os.sched_getaffinity(0)),
        "nvrtc": _nvrtc(),
    }
    if not context.device.emulated:
        properties = torch.cuda.get_device_properties(0)
        row |= {
            "cuda": torch.version.cuda,
            "arch": device_arch(context.device.torch_device),
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "l2_mib": getattr(properties, "L2_cache_size", 0) / 2**20,
            "smi": _smi(),
        }
    context.row(**row)


def build(context: Context) -> None:
    """Compile what the other parts use, in several processes; the results are kept."""
    missing = missing_compiler()
    if missing is not None:
        context.row(skipped=missing)
        return
    builds = _builds(context.sizes, context.device.warpgroups)
    if context.device.emulated:
        builds, arch = builds[:_REHEARSED_BUILDS], _REHEARSED_ARCH
    else:
        arch = device_arch(context.device.torch_device)
    processes = max(1, min(_MOST_PROCESSES, len(os.sched_getaffinity(0)) - 1))
    began = time.perf_counter()
    jobs = [(each, arch) for each in builds]
    found = compile_all(jobs, default_cache_dir(), processes)
    for each, compiled in zip(builds, found, strict=True):
        if isinstance(compiled, CompileError):
            context.row(build=str(each), correct=False, message=str(compiled)[:600])
            continue
        kernels = {name: asdict(resources) for name, resources in compiled.resources.items()}
        context.row(build=str(each), arch=arch, kernels=kernels)
    seconds = time.perf_counter() - began
    context.row(builds=len(builds), processes=processes, seconds=round(seconds, 2))


def _builds(sizes: Sizes, warpgroups: bool) -> list[Build]:
    """Builds of the correctness parts, and with them those of the measurements."""
    builds = [BLOCK_COPY_BUILD, PENALTIES_BUILD]
    builds += [sampling_build(dtype) for dtype in (_BF16, torch.float32)]
    builds += [logits_build("logprobs.cu", dtype) for dtype in (_BF16, torch.float32)]
    attention = {(heads.dim, heads.heads // heads.kv_heads, d, k) for heads, d, k in sizes.correct}
    attention |= {
        (heads.dim, heads.heads // heads.kv_heads, _BF16, kv_dtype)
        for heads, kv_dtype in product(sizes.decode_heads, (_BF16, _FP8))
    }
    for shape in (sizes.one_billion, sizes.eight_billion):
        sharing = shape.heads.heads // shape.heads.kv_heads
        attention.add((shape.heads.dim, sharing, _BF16, _BF16))
    for dim, sharing, dtype, kv_dtype in sorted(attention, key=str):
        builds.append(cache_write_build(dtype, kv_dtype, dim, 16))
        for soft_cap in (False, True) if dim >= 128 else (False,):
            decode = decode_build(dtype, kv_dtype, dim, sharing, 16, soft_cap)
            builds += [decode, prefill_build(dtype, kv_dtype, dim, sharing, 16, soft_cap)]
            if warpgroups and serves_warpgroups(dtype, kv_dtype, dim):
                builds.append(prefill_build(dtype, kv_dtype, dim, sharing, 16, soft_cap, True))
            if not soft_cap:
                builds.append(cascade_build(decode))
    widths = ((_BF16, 64), (_BF16, 4096), (torch.float16, 1032), (_BF16, 8), (torch.float16, 8))
    builds += [layers_build(dtype, dtype, width) for dtype, width in widths]
    return list(dict.fromkeys(builds))


def _nvrtc() -> str:
    try:
        from cupy.cuda import nvrtc

        return ".".join(map(str, nvrtc.getVersion()))
    except (ImportError, RuntimeError) as error:
        return f"none: {error}"


def _smi() -> str:
    """Driver, clocks and power limit, as the driver's own tool has them."""
    fields = "driver_version,clocks.max.sm,clocks.max.mem,clocks.sm,power.limit,temperature.gpu"
    try:
        ran = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"none: {error}"
    return f"{fields}: {ran.stdout.strip().splitlines()[0]}"
