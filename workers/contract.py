"""Proves, when a model is loaded, that its layers use attention in the way ours can serve.

`refuse_config` reads what the configuration admits to; `ContractProbe` stands in for attention
during one small forward pass and watches what really arrives. Runs no real attention.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from blockyard.cuda.backend import AttentionForm
from blockyard.workers.attention_form import form_of, unknown_extras

__all__ = [
    "AttentionShape",
    "ContractProbe",
    "UnsupportedModel",
    "expected_windows",
    "refuse_config",
]

_SERVED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})

_OTHER_MEMORIES = {
    "kv_lora_rank": "keeps keys and values compressed (multi-head latent attention)",
    "num_kv_shared_layers": "shares keys and values between layers",
    "state_size": "has state-space layers, which keep a state and no keys and values",
    "mamba_d_state": "has state-space layers, which keep a state and no keys and values",
    "linear_num_key_heads": "has linear attention, which keeps a state and no keys and values",
}
"""By field of a configuration: what is remembered of tokens where it is not keys and values."""


class UnsupportedModel(Exception):
    """The model needs something that cannot be served; the message says what."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the probe saw: numbers that are the same in every layer, and the layers' formulas."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    forms: tuple[AttentionForm, ...]


def refuse_config(config: Mapping[str, Any], text: Mapping[str, Any], context_tokens: int) -> None:
    """Refuse what a configuration says the model needs and this attention lacks.

    Args:
        config: the whole configuration.
        text: its part about the text decoder (often the same).
        context_tokens: longest context that will be used.

    Raises:
        UnsupportedModel: with the reason.
    """
    kind = config.get("model_type", "unknown")
    if config.get("is_encoder_decoder"):
        raise UnsupportedModel(f"{kind} is an encoder-decoder model; only decoders are served")
    for field, reason in _OTHER_MEMORIES.items():
        if text.get(field):
            raise UnsupportedModel(f"{kind} {reason}; not served")
    unknown = sorted(set(text.get("layer_types") or ()) - _SERVED_LAYER_TYPES)
    if unknown:
        raise UnsupportedModel(f"{kind} has layers of type {', '.join(unknown)}; not served")
    chunk = text.get("attention_chunk_size")
    if "chunked_attention" in (text.get("layer_types") or ()) and (chunk or 0) < context_tokens:
        raise UnsupportedModel(
            f"{kind} attends in chunks of {chunk} tokens, shorter than the context of "
            f"{context_tokens}; not served: lower the context to {chunk}"
        )


def expected_windows(text: Mapping[str, Any]) -> tuple[int | None, ...] | None:
    """The window of each layer as a configuration says; None when it says nothing by layer."""
    types = text.get("layer_types")
    if not types:
        return None
    window = text.get("sliding_window")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


class ContractProbe:
    """Stands in for attention in one forward pass and checks every call.

    It answers zeros, so the pass costs as much as the linear layers and means nothing.

    Args:
        layers: how many must call.
        context_tokens: longest context that will be used.
        windows: see `expected_windows`.
    """

    def __init__(
        self,
        layers: int,
        context_tokens: int,
        windows: tuple[int | None, ...] | None = None,
    ) -> None:
        self._layers = layers
        self._context_tokens = context_tokens
        self._windows = windows
        self._calls: dict[int, int] = {}
        self._forms: dict[int, AttentionForm] = {}
        self._shape: tuple[int, int, int] | None = None

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
        """Check one layer's call; see `LayerAttention`."""
        index = getattr(module, "layer_idx", None)
        if not isinstance(index, int):
            raise UnsupportedModel(f"{type(module).__name__} does not say which layer it is")
        self._calls[index] = self._calls.get(index, 0) + 1
        if mask is not None:
            raise UnsupportedModel(f"layer {index} brings a mask of its own; not served")
        if not getattr(module, "is_causal", True):
            raise UnsupportedModel(f"layer {index} is not causal; only decoders are served")
        unknown = unknown_extras(extras)
        if unknown:
            raise UnsupportedModel(
                f"layer {index} passes {unknown[0]!r} to attention, which is not served"
            )
        self._forms[index] = form_of(scale, extras)
        self._check_window(index, self._forms[index].window)
        self._check_shapes(index, queries, keys, values)
        return torch.zeros_like(queries)

    def finish(self) -> AttentionShape:
        """The shape of attention, once every layer has called exactly once.

        Raises:
            UnsupportedModel: some layer did not call, or called more than once.
        """
        wrong = [index for index in range(self._layers) if self._calls.get(index) != 1]
        if wrong or len(self._calls) != self._layers or self._shape is None:
            raise UnsupportedModel(
                f"layers {wrong or sorted(self._calls)} of {self._layers} do not go through the "
                "attention interface of transformers exactly once; the model cannot be served"
            )
        heads, kv_heads, head_dim = self._shape
        forms = tuple(self._forms[index] for index in range(self._layers))
        return AttentionShape(self._layers, heads, kv_heads, head_dim, forms)

    def _check_window(self, index: int, window: int | None) -> None:
        """What a layer says must be what its configuration says: a mask that is made elsewhere
        from the configuration would go unnoticed."""
        if self._windows is None:
            return
        said = self._windows[index]
        if self._shorter(said) != self._shorter(window):
            raise UnsupportedModel(
                f"layer {index} has a sliding window of {said} tokens by its configuration and "
                f"passes {window} to attention; not served below a context of that length"
            )

    def _shorter(self, window: int | None) -> int | None:
        """The window, if it is shorter than the context."""
        return window if window is not None and window < self._context_tokens else None

    def _check_shapes(
        self, index: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        heads, head_dim = queries.shape[1:]
        kv_heads = keys.shape[1]
        if keys.shape != values.shape or keys.shape[2] != head_dim or heads % kv_heads:
            raise UnsupportedModel(
                f"layer {index} has queries {tuple(queries.shape)}, keys {tuple(keys.shape)} and "
                f"values {tuple(values.shape)}; keys and values must be alike and share the head "
                "size of the queries"
            )
        shape = (heads, kv_heads, head_dim)
        if self._shape not in (None, shape):
            raise UnsupportedModel(
                f"layer {index} has (heads, KV heads, head size) {shape}, earlier layers "
                f"{self._shape}; all must be alike"
            )
        self._shape = shape
