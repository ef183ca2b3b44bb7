"""Proves, when a model is loaded, that its layers use attention in the way ours can serve.

`refuse_config` reads what the configuration admits to; `ContractProbe` stands in for attention
during one small forward pass and watches what really arrives. Runs no real attention.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["AttentionShape", "ContractProbe", "UnsupportedModel", "refuse_config"]

_HARMLESS = frozenset(
    {
        "position_ids",  # rotary positions are applied before attention is called
        "position_embeddings",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
    }
)
"""Keyword arguments that reach the attention function and do not change what it must compute."""

_SERVED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


class UnsupportedModel(Exception):
    """The model needs something that cannot be served; the message says what."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the probe saw: the same in every layer."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


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
    if config.get("quantization_config"):
        raise UnsupportedModel(
            f"this {kind} checkpoint is quantised, which is not served; give an unquantised one"
        )
    if text.get("num_kv_shared_layers"):
        raise UnsupportedModel(f"{kind} shares keys and values between layers; not served")
    unknown = sorted(set(text.get("layer_types") or ()) - _SERVED_LAYER_TYPES)
    if unknown:
        raise UnsupportedModel(f"{kind} has layers of type {', '.join(unknown)}; not served")
    if "sliding_attention" in (text.get("layer_types") or ()):
        _refuse_window(text.get("sliding_window"), context_tokens)


class ContractProbe:
    """Stands in for attention in one forward pass and checks every call.

    It answers zeros, so the pass costs as much as the linear layers and means nothing.
    """

    def __init__(self, layers: int, context_tokens: int) -> None:
        self._layers = layers
        self._context_tokens = context_tokens
        self._calls: dict[int, int] = {}
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
        self._check_extras(index, extras)
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
        return AttentionShape(self._layers, heads, kv_heads, head_dim)

    def _check_extras(self, index: int, extras: dict[str, Any]) -> None:
        for name, value in extras.items():
            if name == "sliding_window":
                _refuse_window(value, self._context_tokens)
            elif not _changes_nothing(name, value):
                raise UnsupportedModel(
                    f"layer {index} passes {name!r} to attention, which is not served"
                )

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


def _refuse_window(window: object, context_tokens: int) -> None:
    if isinstance(window, int) and window < context_tokens:
        raise UnsupportedModel(
            f"the model attends to a sliding window of {window} tokens, shorter than the context "
            f"of {context_tokens}; windows are not served: lower the context to {window}"
        )


def _changes_nothing(name: str, value: object) -> bool:
    if name in _HARMLESS or value is None or value is False:
        return name != "is_causal" or value is not False
    return (name == "dropout" and value == 0.0) or (name == "is_causal" and value is True)
