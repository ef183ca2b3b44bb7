"""The attention function that Hugging Face models call, in place of their own.

It finds the step's attention in a keyword argument that travels through the model with the batch,
so that no global says which step is running. Knows neither models nor requests.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from blockyard.cuda.backend import AttentionStep
from blockyard.workers.attention_form import form_of
from blockyard.workers.kv_layers import KVLayers

__all__ = ["ATTENTION_NAME", "CachedAttention", "LayerAttention", "block_attention"]

ATTENTION_NAME = "blockyard"
"""The name under which the function is registered with transformers."""


class LayerAttention(Protocol):
    """What stands behind the attention of all layers during one forward pass."""

    def layer(
        self,
        module: torch.nn.Module,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        extras: dict[str, Any],
    ) -> torch.Tensor:
        """Attention of one layer over packed tokens, rotary positions already applied.

        `queries` is `[tokens, heads, head_dim]`, keys and values have the KV heads. Returns the
        shape of `queries`. `extras` are the other keyword arguments of the layer.
        """
        ...


@dataclass(frozen=True, slots=True)
class CachedAttention:
    """Attention of one step over the KV cache: writes the new keys and values, then attends."""

    cache: KVLayers
    step: AttentionStep

    def layer(
        self,
        module: torch.nn.Module,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        extras: dict[str, Any],
    ) -> torch.Tensor:
        """See `LayerAttention`. The mask was proved absent, and extras known, at load."""
        index = module.layer_idx
        assert isinstance(index, int)
        kv = self.cache.layer(index)
        self.step.write(kv, keys, values)
        return self.step.attend(kv, queries, form_of(scale, extras))


def block_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    layer_attention: LayerAttention,
    scaling: float | None = None,
    **extras: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in the form that transformers calls.

    Takes `[1, heads, tokens, head_dim]`, returns `[1, tokens, heads, head_dim]` and no weights.
    """
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    attended = layer_attention.layer(
        module,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        attention_mask,
        scale,
        extras,
    )
    return attended[None], None
