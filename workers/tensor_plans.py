"""Which layers of a model are divided over ranks, and along what.

transformers describes most models by a plan, names to styles; a small table supplies what it
leaves out. A plan does not say which columns are heads: the names of projections do. Data only.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

__all__ = [
    "EXPERT_PARTS",
    "HEAD_COLUMNS",
    "PACKED_COLUMNS",
    "ExpertPart",
    "HeadUnit",
    "Style",
    "known_style",
    "plan_of",
    "style_of",
]


class Style(StrEnum):
    """What becomes of a layer; the values are transformers' names of styles."""

    COLUMN = "colwise"
    ROW = "rowwise"
    EXPERTS = "moe_tp_experts"
    EMBEDDING = "embedding_rowwise"
    WHOLE = "replicated_with_grad_allreduce"


_OTHER_NAMES = {
    # Gathered or split again only because plans cannot say which columns belong together.
    "colwise_gather_output": Style.COLUMN,
    "colwise_rep": Style.COLUMN,
    "rowwise_split_input": Style.ROW,
    "rowwise_rep": Style.ROW,
    "replicate": Style.WHOLE,
}


class HeadUnit(Enum):
    """What a run of head columns is made of."""

    QUERY = auto()
    KV = auto()
    ALL_THREE = auto()
    """Query, key and value of each head, one head after the other."""


HEAD_COLUMNS: Mapping[str, tuple[HeadUnit, ...]] = {
    "q_proj": (HeadUnit.QUERY,),
    "k_proj": (HeadUnit.KV,),
    "v_proj": (HeadUnit.KV,),
    "qkv_proj": (HeadUnit.QUERY, HeadUnit.KV, HeadUnit.KV),
    "c_attn": (HeadUnit.QUERY, HeadUnit.KV, HeadUnit.KV),
    "query_key_value": (HeadUnit.ALL_THREE,),
}
"""Projections of attention by name, and the runs that their columns are made of, in order."""

PACKED_COLUMNS: Mapping[str, int] = {"gate_up_proj": 2}
"""Layers outside attention whose columns are several runs, each divided alike."""


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """How a tensor of all experts is divided.

    Attributes:
        dim: the dimension along which its columns lie.
        runs: how many runs of all columns lie there; 0 for what is added to every rank's sum, so
            that all ranks but one hold zeros.
        step: how many entries belong to one column.
    """

    dim: int
    runs: int = 1
    step: int = 1


EXPERT_PARTS: Mapping[str, ExpertPart] = {
    # Gate and up columns, one after the other or in pairs, before or after what goes in.
    "packed_colwise": ExpertPart(dim=1, runs=2),
    "packed_rowwise": ExpertPart(dim=2, runs=2),
    "flipped_pairs": ExpertPart(dim=2, step=2),
    "pairs": ExpertPart(dim=1, step=2),
    "rowwise": ExpertPart(dim=2),
    "colwise": ExpertPart(dim=1),
    "once": ExpertPart(dim=0, runs=0),
}
"""What a style means for a tensor of experts, `[experts, ...]`, by the style's name."""

_ADDED: Mapping[str, Mapping[str, str]] = {
    "gpt2": {
        "transformer.h.*.attn.c_attn": "colwise",
        "transformer.h.*.attn.c_proj": "rowwise",
        "transformer.h.*.mlp.c_fc": "colwise",
        "transformer.h.*.mlp.c_proj": "rowwise",
    },
    "opt": {
        "model.decoder.layers.*.self_attn.q_proj": "colwise",
        "model.decoder.layers.*.self_attn.k_proj": "colwise",
        "model.decoder.layers.*.self_attn.v_proj": "colwise",
        "model.decoder.layers.*.self_attn.out_proj": "rowwise",
        "model.decoder.layers.*.fc1": "colwise",
        "model.decoder.layers.*.fc2": "rowwise",
    },
    "gpt_oss": {
        "model.layers.*.self_attn.q_proj": "colwise",
        "model.layers.*.self_attn.k_proj": "colwise",
        "model.layers.*.self_attn.v_proj": "colwise",
        "model.layers.*.self_attn.o_proj": "rowwise",
        "model.layers.*.mlp.experts": "moe_tp_experts",
        "model.layers.*.mlp.experts.gate_up_proj": "flipped_pairs",
        "model.layers.*.mlp.experts.gate_up_proj_bias": "pairs",
        "model.layers.*.mlp.experts.down_proj": "colwise",
        "model.layers.*.mlp.experts.down_proj_bias": "once",
    },
}
"""By model type: what transformers' plans leave out."""


def plan_of(model_type: str, plan: Mapping[str, str] | None) -> dict[str, str]:
    """A model's whole plan: transformers' own and what is added here."""
    return {**(plan or {}), **_ADDED.get(model_type, {})}


def style_of(name: str, plan: Mapping[str, str]) -> str | None:
    """The style of a module or parameter with this name in the model, numbers being layers."""
    return plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))


def known_style(style: str) -> Style | None:
    """The style by this name; None when it is one that is not served."""
    if style in _OTHER_NAMES:
        return _OTHER_NAMES[style]
    try:
        return Style(style)
    except ValueError:
        return None
