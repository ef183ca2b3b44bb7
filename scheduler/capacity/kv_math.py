"""KV bytes and weight bytes of a model, from its shape and the width of its elements.

Knows nothing of files, devices or traffic. Units: bytes, tokens; a width is in bits, because
weights of four bits exist.
"""

from dataclasses import dataclass

__all__ = ["KNOWN_SHAPES", "ModelShape", "element_bits", "parse_shape"]

_BITS = {
    **dict.fromkeys(("fp32", "float32"), 32),
    **dict.fromkeys(("fp16", "float16", "bf16", "bfloat16"), 16),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "int8"), 8),
    **dict.fromkeys(("fp4", "int4"), 4),
}


_SCALE_BYTES = {"int8": 4}
"""Beside the numbers of one slot of a head: in int8 it has a scale of its own."""


def element_bits(dtype: str) -> int:
    """Bits of one element of `dtype`.

    Raises:
        ValueError: no dtype of that name is known.
    """
    try:
        return _BITS[dtype.lower()]
    except KeyError:
        raise ValueError(f"dtype {dtype!r} is not known; give one of {', '.join(_BITS)}") from None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides a model's memory.

    Attributes:
        num_layers: layers that keep KV, each for the whole context.
        num_kv_heads: KV heads in a layer, before they are split over ranks.
        head_dim: elements of one head's key, and of its value.
        num_parameters: weights of the whole model; 0 means not known.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_parameters: int = 0

    def __post_init__(self) -> None:
        """Refuse shapes that hold nothing."""
        for name in ("num_layers", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_parameters < 0:
            raise ValueError(f"num_parameters is {self.num_parameters}; it cannot be negative")

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes that one token's keys and values take in all layers, stored once."""
        return self._kv_bytes(self.num_kv_heads, dtype)

    def rank_kv_heads(self, num_ranks: int) -> int:
        """KV heads of the fullest of `num_ranks` ranks; with more ranks than heads they repeat."""
        return -(-self.num_kv_heads // num_ranks)

    def rank_kv_bytes_per_token(self, dtype: str, num_ranks: int) -> int:
        """Bytes of one token on the fullest rank, which is the one that runs out first."""
        return self._kv_bytes(self.rank_kv_heads(num_ranks), dtype)

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all weights."""
        return self.num_parameters * element_bits(dtype) // 8

    def _kv_bytes(self, num_heads: int, dtype: str) -> int:
        keys_and_values = 2
        slots = keys_and_values * self.num_layers * num_heads
        scales = slots * _SCALE_BYTES.get(dtype.lower(), 0)
        return slots * self.head_dim * element_bits(dtype) // 8 + scales


KNOWN_SHAPES = {
    "llama-2-7b": ModelShape(32, 32, 128, 6_738_415_616),
    "llama-2-13b": ModelShape(40, 40, 128, 13_015_864_320),
    "llama-2-70b": ModelShape(80, 8, 128, 68_976_648_192),
    "llama-3-8b": ModelShape(32, 8, 128, 8_030_261_248),
    "llama-3-70b": ModelShape(80, 8, 128, 70_553_706_496),
    "smollm2-135m": ModelShape(30, 3, 64, 134_515_008),
}
"""Models that people plan for before they have the files."""


def parse_shape(text: str) -> ModelShape:
    """Read `layers,kv_heads,head_dim,params`, such as `32,8,128,8e9`.

    Raises:
        ValueError: not four numbers, or numbers that make no model.
    """
    parts = text.split(",")
    try:
        numbers = [float(part) for part in parts]
        if len(numbers) != 4 or any(number != int(number) for number in numbers):
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(
            f"shape {text!r} is not layers,kv_heads,head_dim,params; an 8B model with 8 KV heads "
            "is 32,8,128,8e9"
        ) from None
    layers, kv_heads, head_dim, parameters = (int(number) for number in numbers)
    return ModelShape(layers, kv_heads, head_dim, parameters)
