"""Rewrites a quantised GGUF file with its matrices in another type; all else is copied."""

from pathlib import Path

import numpy as np
from gguf import (
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    dequantize,
    quantize,
)

__all__ = ["dequantise"]

_TYPES = {
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
_WRITTEN_ANEW = ("general.architecture", "general.file_type", "general.quantization_version")


def dequantise(source: Path, kind: str, target: Path) -> None:
    """Write `target` with matrices of `kind`, `bf16` or `q8_0`."""
    matrix_type, file_type = _TYPES[kind]
    reader = GGUFReader(source)
    architecture = reader.get_field("general.architecture")
    assert architecture is not None
    writer = GGUFWriter(target, architecture.contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in _WRITTEN_ANEW:
            continue
        value_type = field.types[0]
        inner = field.types[-1] if value_type == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), value_type, sub_type=inner)
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)
    for tensor in reader.tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if numbers.ndim == 1:
            writer.add_tensor(tensor.name, numbers)
        else:
            packed = quantize(numbers, matrix_type)
            writer.add_tensor(tensor.name, packed, raw_dtype=matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
