"""Recognises decoders of the Llama family by what their modules are called and made of.

Says which modules do what, and nothing of how. That they are also used in the way the family uses
them is for a comparison of results to show.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu

from blockyard.workers.cpu.packed import PANEL_COLUMNS

__all__ = ["DecoderParts", "LayerParts", "NotRecognised", "linear_names", "recognise"]

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_FEED_FORWARD = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class NotRecognised(Exception):
    """The model is built otherwise; the message says where."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Modules of one layer; `query_norm` and `key_norm` are over heads, or None."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear
    attention_norm: nn.Module
    feed_forward_norm: nn.Module
    query_norm: nn.Module | None
    key_norm: nn.Module | None

    def linears(self) -> tuple[nn.Linear, ...]:
        """The layer's linears."""
        return (
            *(self.query, self.key, self.value, self.output),
            *(self.gate, self.up, self.down),
        )


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """Modules of a decoder."""

    embedding: nn.Embedding
    layers: tuple[LayerParts, ...]
    norm: nn.Module
    rotary: nn.Module
    head: nn.Linear

    @property
    def tied(self) -> bool:
        """Whether the head's weights are the embedding's."""
        return self.embedding.weight is self.head.weight


def recognise(model: nn.Module) -> DecoderParts:
    """The parts of a decoder of the family.

    Raises:
        NotRecognised: it is no such decoder, or has parts that are not known here.
    """
    inner: Any = getattr(model, "model", None)
    head = getattr(model, "lm_head", None)
    if inner is None or set(dict(model.named_children())) != {"model", "lm_head"}:
        raise NotRecognised(f"{type(model).__name__} is not a decoder with one head")
    names = set(dict(inner.named_children()))
    if names != {"embed_tokens", "layers", "norm", "rotary_emb"}:
        raise NotRecognised(f"the decoder consists of {', '.join(sorted(names))}")
    if not isinstance(head, nn.Linear) or head.in_features % PANEL_COLUMNS:
        raise NotRecognised("the head is no linear over whole panels of 16 inputs")
    layers = tuple(_layer(index, layer) for index, layer in enumerate(inner.layers))
    return DecoderParts(inner.embed_tokens, layers, _norm(inner.norm), inner.rotary_emb, head)


def linear_names(layer: int) -> tuple[str, ...]:
    """What a layer's linears are called in their model, in the order of `LayerParts.linears`."""
    attention = (f"self_attn.{name}_proj" for name in "qkvo")
    feed_forward = (f"mlp.{name}_proj" for name in ("gate", "up", "down"))
    return tuple(f"model.layers.{layer}.{name}" for name in (*attention, *feed_forward))


def _layer(index: int, layer: Any) -> LayerParts:
    def check(module: nn.Module, needed: set[str], allowed: set[str]) -> None:
        names = set(dict(module.named_children()))
        if not needed <= names <= needed | allowed:
            wrong = ", ".join(sorted(names ^ needed))
            raise NotRecognised(f"layer {index} differs in {wrong}")

    check(layer, _LAYER, set())
    attention, feed_forward = layer.self_attn, layer.mlp
    check(attention, _ATTENTION, _HEAD_NORMS)
    check(feed_forward, _FEED_FORWARD, set())
    sample = torch.linspace(-8, 8, 65)
    if not torch.allclose(feed_forward.act_fn(sample), silu(sample), atol=1e-6):
        raise NotRecognised(f"layer {index} has an activation other than SiLU")
    head_norms = [
        _norm(getattr(attention, name)) if hasattr(attention, name) else None
        for name in ("q_norm", "k_norm")
    ]
    parts = LayerParts(
        query=attention.q_proj,
        key=attention.k_proj,
        value=attention.v_proj,
        output=attention.o_proj,
        gate=feed_forward.gate_proj,
        up=feed_forward.up_proj,
        down=feed_forward.down_proj,
        attention_norm=_norm(layer.input_layernorm),
        feed_forward_norm=_norm(layer.post_attention_layernorm),
        query_norm=head_norms[0],
        key_norm=head_norms[1],
    )
    for linear in parts.linears():
        if not isinstance(linear, nn.Linear) or linear.weight.dtype is not torch.float32:
            raise NotRecognised(f"layer {index} has a linear that is no float32 linear")
    if parts.gate.bias is not None or parts.up.bias is not None:
        raise NotRecognised(f"layer {index} adds a bias before its activation")
    return parts


def _norm(module: Any) -> nn.Module:
    weight = getattr(module, "weight", None)
    if not hasattr(module, "variance_epsilon") or not isinstance(weight, torch.Tensor):
        raise NotRecognised(f"{type(module).__name__} is no RMS norm")
    assert isinstance(module, nn.Module)
    return module
