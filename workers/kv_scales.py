"""What keys and values are divided by where they are kept in float8: one number for each KV head.

The checkpoint tells, or they are measured by a prefill before the first step. Both depend on the
weights alone, and what is measured is rounded up to powers of two, which hides how sums were added
up: every group, every rank that takes another's place and every model that wakes has the same, so a
block is worth the same wherever it is found, swapped to, or computed again. Units: tokens.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from blockyard.cuda.backend import AttentionBatch
from blockyard.cuda.reference import ReferenceBackend
from blockyard.workers.attention import CachedAttention
from blockyard.workers.config import WorkerConfig
from blockyard.workers.description import ModelFilesError
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVLayers
from blockyard.workers.model import DecoderModel
from blockyard.workers.partition import share_heads

__all__ = ["checkpoint_scales", "measured_scales", "settle_head_scales"]

_TOKENS = 256
_SEED = 7
_MARGIN = 2.0
"""Texts have larger numbers than tokens drawn by chance: measured, by up to 1.8 times. What is
larger still is stored as the largest there is."""
_MOST_FLOAT8 = 448.0
_SCALE = re.compile(
    r"\blayers\.(\d+)\.(?:self_attn|attn|attention)\.(?:attn\.|[kv]_proj\.)?(k|v)_scale$"
)


def settle_head_scales(cache: KVLayers, model: DecoderModel, config: WorkerConfig) -> None:
    """Give float8 blocks their scales, once, before anything is written to them.

    All ranks of a group do this together: they sum as in any step.

    Args:
        cache: of this rank.
        model: this rank's part.
        config: of this rank.

    Raises:
        ModelFilesError: the checkpoint's scales cannot be read, or are not those of this model.
    """
    if cache.scaled:
        return
    assert cache.head_scales is not None, "blocks without scales are scaled"
    scales = checkpoint_scales(Path(config.model_dir), cache.geometry.layers)
    if scales is None:
        scales = measured_scales(cache, model, config.max_context_tokens)
    elif scales.shape[2] > 1:
        scales = _own_heads(scales, model, config)
    cache.set_head_scales(scales)


def checkpoint_scales(directory: Path, layers: int) -> torch.Tensor | None:
    """What the checkpoint tells: float32 `[layers, 2 (K, V), KV heads or 1]`; None: nothing.

    Raises:
        ModelFilesError: it tells of some layers, or numbers that are no scales.
    """
    found: dict[tuple[int, int], torch.Tensor] = {}
    try:
        for path in sorted(directory.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # it is no mapping
                    if match := _SCALE.search(name):
                        part = "kv".index(match[2])
                        found[int(match[1]), part] = file.get_tensor(name).float().reshape(-1)
    except (OSError, SafetensorError) as error:
        raise ModelFilesError(f"the scales in {directory} cannot be read: {error}") from error
    if not found:
        return None
    wanted = [(layer, part) for layer in range(layers) for part in range(2)]
    if sorted(found) != wanted or len({len(scale) for scale in found.values()}) != 1:
        raise ModelFilesError(
            f"the checkpoint has scales for {len(found)} keys and values of {len(wanted)}, or of "
            "different numbers of heads; keep KV in the model's own dtype"
        )
    scales = torch.stack([found[key] for key in wanted]).view(layers, 2, -1)
    if not bool((scales.isfinite() & (scales > 0)).all()):
        raise ModelFilesError("the checkpoint's scales are not all above 0; keep KV in auto")
    return scales


def measured_scales(
    cache: KVLayers, model: DecoderModel, context_tokens: int = _TOKENS
) -> torch.Tensor:
    """What a prefill of fixed tokens needs, with room to spare: `[layers, 2, KV heads]`."""
    geometry = replace(cache.geometry, dtype=model.dtype, beside=None)
    count, device = min(_TOKENS, context_tokens), model.device
    blocks = -(-count // geometry.block_size)
    probe = KVCache(geometry, blocks, device)
    probe.clear()
    batch = AttentionBatch(
        counts=np.array([count], dtype=np.int32),
        lengths=np.array([count], dtype=np.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32, device=device)[None],
        slots=torch.arange(count, device=device),
        block_size=geometry.block_size,
    )
    chance = torch.Generator().manual_seed(_SEED)
    ids = torch.randint(model.vocab_size, (count,), generator=chance).to(device)
    places = torch.arange(count, device=device)
    with torch.inference_mode():
        attention = CachedAttention(probe, ReferenceBackend().begin(batch))
        model.forward(ids, places, places[-1:], attention)
        most = probe.blocks.float().abs().amax(dim=(0, 4, 5))
    wanted = (most * (_MARGIN / _MOST_FLOAT8)).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.exp2(torch.ceil(torch.log2(wanted)))


def _own_heads(scales: torch.Tensor, model: DecoderModel, config: WorkerConfig) -> torch.Tensor:
    """Those of this rank's KV heads, of scales of all heads."""
    text = model.module.config.get_text_config()
    heads = int(text.num_attention_heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    if scales.shape[2] != kv_heads:
        raise ModelFilesError(
            f"the checkpoint has scales of {scales.shape[2]} KV heads, the model has {kv_heads}"
        )
    own = share_heads(heads, kv_heads, config.world_size)[config.rank].kv
    return scales[:, :, own.start : own.stop]
