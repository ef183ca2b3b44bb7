"""How large each part's cases are, on a card and in the rehearsal. Units: tokens, blocks, bytes."""

from dataclasses import dataclass

import torch

__all__ = ["CARD", "REHEARSAL", "Heads", "ModelShape", "Serving", "Sizes"]

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, KV heads, and numbers in each."""

    heads: int
    kv_heads: int
    dim: int

    def __str__(self) -> str:
        """As the tables have it."""
        return f"{self.heads}/{self.kv_heads}x{self.dim}"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of the Llama family."""

    hidden: int
    intermediate: int
    layers: int
    heads: Heads
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Serving:
    """Requests that are served together: all begin at once."""

    requests: int
    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one run.

    Attributes:
        correct: heads, dtype and KV dtype of attention that is checked.
        lengths: tokens in the cache of the requests that are checked.
        chunks: tokens computed and tokens in the cache of prefill that is checked.
        decode: batch and context of what is timed.
        decode_heads: their heads, each in bf16 and in fp8.
        prefill: name, tokens computed and tokens in the cache, for each request.
        arena_bytes: most memory for keys and values.
        fresh_bytes: keys and values read before the same are read again, so that no cache helps.
        copy_bytes: of the copy that is the ceiling.
        layouts: batch, context and layers of the pool of which one layer is read.
        swaps: bytes of a block, and how many are moved.
        logits: rows and vocabulary.
        one_billion, eight_billion: shapes of models.
        servings: what each serves.
    """

    correct: tuple[tuple[Heads, torch.dtype, torch.dtype], ...]
    lengths: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int], ...]
    decode_heads: tuple[Heads, ...]
    prefill: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    arena_bytes: int
    fresh_bytes: int
    copy_bytes: int
    layouts: tuple[tuple[int, int, int], ...]
    swaps: tuple[tuple[int, int], ...]
    logits: tuple[int, int]
    one_billion: ModelShape
    eight_billion: ModelShape
    servings: tuple[Serving, ...]


CARD = Sizes(
    correct=(
        (Heads(32, 8, 128), BF16, BF16),
        (Heads(32, 8, 128), BF16, FP8),
        (Heads(9, 3, 64), BF16, BF16),
        (Heads(9, 3, 64), BF16, FP8),
        (Heads(16, 1, 128), FP16, FP16),
        (Heads(4, 4, 80), BF16, BF16),
        (Heads(8, 2, 96), FP16, FP8),
        (Heads(16, 2, 256), BF16, BF16),
        (Heads(16, 2, 256), BF16, FP8),
    ),
    lengths=(1, 15, 16, 17, 0, 64, 300, 777, 2000),
    chunks=((1, 1), (17, 17), (64, 300), (1, 100), (200, 200), (5, 2000), (333, 1000)),
    # What serving is most like comes first.
    decode=(
        *((64, 4096), (8, 32768), (256, 2048), (1, 32768), (32, 8192), (128, 1024)),
        *((256, 512), (64, 512), (1, 512), (8, 4096), (1, 4096), (128, 4096), (32, 32768)),
        *((256, 8192), (8, 512)),
    ),
    decode_heads=(Heads(32, 8, 128), Heads(9, 3, 64)),
    prefill=(
        ("8 prompts of 1k", (1024,) * 8, (1024,) * 8),
        ("1 prompt of 8k", (8192,), (8192,)),
        ("mixed chunks", (512, 512, 256, 1024, 2048), (4608, 512, 8192, 1024, 3000)),
    ),
    arena_bytes=36 << 30,
    fresh_bytes=256 << 20,
    copy_bytes=4 << 30,
    layouts=((64, 4096, 1), (64, 4096, 32)),
    swaps=((2 << 20, 512), (128 << 10, 2048)),
    logits=(64, 128256),
    one_billion=ModelShape(2048, 8192, 16, Heads(32, 8, 64), 128256),
    eight_billion=ModelShape(4096, 14336, 32, Heads(32, 8, 128), 128256),
    servings=(Serving(64, 128, 128), Serving(1, 128, 64)),
)

REHEARSAL = Sizes(
    correct=((Heads(8, 2, 128), BF16, BF16), (Heads(3, 1, 64), BF16, FP8)),
    lengths=(1, 16, 17, 0, 70),
    chunks=((1, 1), (17, 17), (20, 70), (1, 40)),
    decode=((2, 64), (1, 32)),
    decode_heads=(Heads(8, 2, 128), Heads(3, 1, 64)),
    prefill=(("2 prompts", (20, 20), (20, 20)), ("mixed chunks", (16, 20), (64, 20))),
    arena_bytes=8 << 20,
    fresh_bytes=128 << 10,
    copy_bytes=1 << 20,
    layouts=((2, 64, 1), (2, 64, 3)),
    swaps=((1 << 20, 3), (4 << 10, 12)),
    logits=(3, 1500),
    one_billion=ModelShape(64, 96, 2, Heads(4, 2, 32), 128),
    eight_billion=ModelShape(96, 128, 1, Heads(3, 3, 32), 128),
    servings=(Serving(2, 9, 3),),
)
