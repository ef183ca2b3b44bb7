"""The fused layers by kernel: RMSNorm, with a residual or without, and gated activations.

The torch twin is `reference_layers.py`. Units: numbers, rows.
"""

import numpy as np
import torch

from blockyard.cuda.alignment import VECTOR, check_vectors
from blockyard.cuda.launch import KernelLibrary, address
from blockyard.cuda.sources import Build

__all__ = ["MOST_WIDTH", "KernelLayers", "layers_build"]

_THREADS = 256
_WARP_WIDTH = 32 * VECTOR * 2
"""Rows up to this wide are left to one warp each."""

MOST_WIDTH = _THREADS * VECTOR * 8
"""The widest row that fits into the registers of a thread block."""

_SHARED_BYTES = 4 * _THREADS // 32


def layers_build(dtype: torch.dtype, weight_dtype: torch.dtype, width: int) -> Build:
    """The build whose threads hold rows of `width` numbers.

    Raises:
        ValueError: there is none.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"rows are {dtype}; the kernels take bfloat16 and float16")
    if weight_dtype not in (dtype, torch.float32):
        raise ValueError(f"weights are {weight_dtype}; the kernels take {dtype} and float32")
    if width % VECTOR or not 0 < width <= MOST_WIDTH:
        raise ValueError(
            f"rows are {width} numbers wide; the kernels take multiples of {VECTOR} "
            f"up to {MOST_WIDTH}"
        )
    threads = 32 if width <= _WARP_WIDTH else _THREADS
    vectors = -(-width // (threads * VECTOR))
    return Build.of(
        "layers.cu",
        BF16=dtype is torch.bfloat16,
        ROW_THREADS=threads,
        VECTORS=1 << (vectors - 1).bit_length(),
        WEIGHT_FLOAT=weight_dtype is torch.float32,
    )


class KernelLayers:
    """See `blockyard.cuda.backend.FusedLayers`.

    Raises:
        ValueError: in each method, for shapes and dtypes that `layers_build` has no kernel for.
    """

    def __init__(self, library: KernelLibrary) -> None:
        self._library = library

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `FusedLayers`; both are contiguous and of one shape."""
        if hidden.shape != residual.shape or not residual.is_contiguous():
            raise ValueError(
                f"hidden is {tuple(hidden.shape)} and the residual {tuple(residual.shape)}, "
                "strided otherwise; they must agree and be contiguous"
            )
        sums = torch.empty_like(residual)
        output = self._norm(hidden.contiguous(), residual, weight, epsilon, sums)
        return output, sums

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """See `FusedLayers`; the last axis is contiguous, two axes before it may be strided."""
        return self._norm(rows, None, weight, epsilon, None)

    def silu_and_multiply(self, gate_and_up: torch.Tensor) -> torch.Tensor:
        """See `FusedLayers`."""
        return self._gate("silu_and_multiply", gate_and_up)

    def gelu_and_multiply(self, gate_and_up: torch.Tensor) -> torch.Tensor:
        """See `FusedLayers`."""
        return self._gate("gelu_and_multiply", gate_and_up)

    def _norm(
        self,
        rows: torch.Tensor,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        epsilon: float,
        sums: torch.Tensor | None,
    ) -> torch.Tensor:
        width = rows.shape[-1]
        build = layers_build(rows.dtype, weight.dtype, width)
        output = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        num_rows = rows.numel() // width
        if not num_rows:
            return output
        inner, outer_stride, inner_stride = _strides(rows)
        check_vectors(rows, outer_stride, inner_stride)
        kernel = self._library.kernel(build, "rms_norm")
        arguments = np.zeros(1, kernel.arguments)
        arguments["rows"] = address(rows)
        arguments["residual"] = address(residual)
        arguments["weight"] = address(weight)
        arguments["sums"] = address(sums)
        arguments["output"] = address(output)
        arguments["outer_stride"] = outer_stride
        arguments["inner_stride"] = inner_stride
        arguments["inner"] = inner
        arguments["num_rows"] = num_rows
        arguments["width"] = width
        arguments["epsilon"] = epsilon
        rows_a_block = _THREADS // dict(build.defines)["ROW_THREADS"]
        kernel(-(-num_rows // rows_a_block), _THREADS, arguments, _SHARED_BYTES)
        return output

    def _gate(self, name: str, gate_and_up: torch.Tensor) -> torch.Tensor:
        width = gate_and_up.shape[-1] // 2
        if gate_and_up.dim() != 2 or width * 2 != gate_and_up.shape[-1] or width % VECTOR:
            raise ValueError(
                f"gate and up are {tuple(gate_and_up.shape)}; "
                f"they must be [tokens, 2 * a multiple of {VECTOR}]"
            )
        # Registers of rows mean nothing here: the smallest build serves every width.
        build = layers_build(gate_and_up.dtype, gate_and_up.dtype, VECTOR)
        output = gate_and_up.new_empty(gate_and_up.shape[0], width)
        vectors = output.numel() // VECTOR
        if not vectors:
            return output
        check_vectors(gate_and_up, gate_and_up.stride(0), 0)
        kernel = self._library.kernel(build, name)
        arguments = np.zeros(1, kernel.arguments)
        arguments["gate_and_up"] = address(gate_and_up)
        arguments["output"] = address(output)
        arguments["num_vectors"] = vectors
        arguments["row_stride"] = gate_and_up.stride(0)
        arguments["width"] = width
        kernel(-(-vectors // _THREADS), _THREADS, arguments)
        return output


def _strides(rows: torch.Tensor) -> tuple[int, int, int]:
    """Rows of the last axis as two axes: size of the inner one, stride of outer and inner."""
    if rows.dim() == 3:
        return rows.shape[1], rows.stride(0), rows.stride(1)
    if rows.dim() == 2:
        return 1, rows.stride(0), 0
    flat = rows.reshape(-1, rows.shape[-1])
    if flat.data_ptr() != rows.data_ptr():
        raise ValueError(f"rows of shape {tuple(rows.shape)} are strided along more than two axes")
    return 1, flat.stride(0), 0
