"""What a layer asks of attention, read from the keyword arguments it passes.

Most of them change nothing for a packed step with positions of its own; a window, a soft cap and
sinks change the formula; anything else is unknown, and unknown things are never ignored.
"""

from collections.abc import Mapping
from typing import Any

import torch

from blockyard.cuda.backend import AttentionForm

__all__ = ["form_of", "unknown_extras"]

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
_FORMULA = frozenset({"sliding_window", "softcap", "s_aux"})


def form_of(scale: float, extras: Mapping[str, Any]) -> AttentionForm:
    """The formula of a layer that passes `extras` beside queries, keys and values."""
    sinks: torch.Tensor | None = extras.get("s_aux")
    return AttentionForm(
        scale=scale,
        window=extras.get("sliding_window") or None,
        soft_cap=extras.get("softcap") or None,
        sinks=None if sinks is None else sinks.float(),
    )


def unknown_extras(extras: Mapping[str, Any]) -> list[str]:
    """Names of those arguments that would change the result in a way that is not served."""
    return [name for name, value in extras.items() if not _is_known(name, value)]


def _is_known(name: str, value: object) -> bool:
    if name == "is_causal":
        return value is None or value is True
    if name in _FORMULA or name in _HARMLESS or value is None or value is False:
        return True
    return name == "dropout" and value == 0.0
