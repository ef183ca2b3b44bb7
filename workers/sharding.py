"""Divides a model over the ranks of a group, before its weights are read.

Takes a model whose parameters have shapes and no memory, leaves this rank's part of each, and tells
which part of the checkpoint's tensors that is. What to divide is said by the model's own
tensor-parallel plan and `tensor_plans.py`; how, by `partition.py`. Reads no weights.
"""

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from blockyard.workers.checkpoint import Slice
from blockyard.workers.collectives import Communicator
from blockyard.workers.contract import UnsupportedModel
from blockyard.workers.cutting import Cutter, inputs_of, outputs_of
from blockyard.workers.partition import (
    HeadShare,
    PartitionError,
    Span,
    share_columns,
    share_heads,
    share_rows,
)
from blockyard.workers.sharded_layers import (
    HeadLinear,
    SpreadRMSNorm,
    split_embedding,
    sum_outputs,
)
from blockyard.workers.tensor_plans import (
    EXPERT_PARTS,
    HEAD_COLUMNS,
    PACKED_COLUMNS,
    HeadUnit,
    Style,
    known_style,
    plan_of,
    style_of,
)

__all__ = ["shard_model"]

_HEAD_COUNTS = ("num_heads", "num_attention_heads")
_KV_HEAD_COUNTS = ("num_key_value_heads", "num_kv_heads")


def shard_model(model: Any, communicator: Communicator) -> dict[str, Slice]:
    """Leave this rank's part of a model on the meta device.

    Args:
        model: a decoder of transformers with a head.
        communicator: of this rank; the model's layers keep it.

    Returns:
        By parameter, its part of the checkpoint's tensor; parameters not named are whole.

    Raises:
        UnsupportedModel: it cannot be divided over so many ranks, with the reason.
    """
    try:
        return _Sharder(model, communicator).shard()
    except PartitionError as error:
        raise UnsupportedModel(f"{type(model).__name__}: {error}") from error


class _Sharder:
    def __init__(self, model: Any, communicator: Communicator) -> None:
        self._model = model
        self._communicator = communicator
        self._cutter = Cutter(model, communicator)
        config = model.config.get_text_config()
        self._plan = plan_of(config.model_type, model.tp_plan)
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(getattr(config, "num_key_value_heads", None) or self._heads)
        self._shares = share_heads(self._heads, self._kv_heads, communicator.size)
        self._share = self._shares[communicator.rank]
        # Weights of each rank's heads in one layer, which the columns of its MLP even out.
        self._loads = [0.0] * communicator.size

    def shard(self) -> dict[str, Slice]:
        self._refuse_unknown_styles()
        modules = dict(self._model.named_modules())
        attentions = {
            name
            for name, module in modules.items()
            if isinstance(getattr(module, "layer_idx", None), int)
            and any(child in HEAD_COLUMNS for child, _ in module.named_children())
        }
        if not attentions:
            raise self._refusal("no layer has projections that can be divided")
        for name in attentions:
            self._attention(name, modules[name])
        for name, module in modules.items():
            if style_of(name, self._plan) == Style.EXPERTS:
                self._experts(name, module)
            elif name and name not in attentions:
                self._mlp(name, module)
        self._vocabulary()
        return self._cutter.slices

    def _attention(self, name: str, attention: nn.Module) -> None:
        children = dict(attention.named_children())
        head_dim = self._head_dim(name, children)
        loads = [0] * len(self._shares)
        for child, layer in children.items():
            full = f"{name}.{child}"
            style = self._style(full)
            if style is Style.COLUMN:
                units = HEAD_COLUMNS.get(child)
                if units is None:
                    raise self._refusal(f"what the columns of {full} are made of is not known")
                self._cutter.columns(full, self._head_spans(full, layer, units, head_dim))
                across = inputs_of(layer)
            elif style is Style.ROW:
                units = (HeadUnit.QUERY,)
                self._cutter.rows(full, self._share.query.scaled(inputs_of(layer) // self._heads))
                across = outputs_of(layer)
            else:
                if child in ("q_norm", "k_norm"):
                    self._norm(full, layer, child == "q_norm", head_dim)
                continue
            for rank, share in enumerate(self._shares):
                loads[rank] += across * sum(_columns_of(unit, share, head_dim) for unit in units)
        if "sinks" in dict(attention.named_parameters(recurse=False)):
            self._cutter.parameter(f"{name}.sinks", 0, (self._share.query,))
        self._localise(attention)
        self._loads = [float(load) for load in loads]

    def _head_dim(self, name: str, children: dict[str, nn.Module]) -> int:
        child, units = next(entry for entry in HEAD_COLUMNS.items() if entry[0] in children)
        whole = HeadShare(Span(0, self._heads), Span(0, self._kv_heads))
        head_dim, rest = divmod(
            outputs_of(children[child]), sum(_columns_of(unit, whole, 1) for unit in units)
        )
        if rest:
            raise self._refusal(f"the columns of {name}.{child} do not divide into heads")
        return head_dim

    def _head_spans(
        self, name: str, layer: nn.Module, units: Sequence[HeadUnit], head_dim: int
    ) -> list[Span]:
        """This rank's columns in each run of a projection."""
        whole = HeadShare(Span(0, self._heads), Span(0, self._kv_heads))
        spans, start = [], 0
        for unit in units:
            heads = self._share.kv if unit is HeadUnit.KV else self._share.query
            span = heads.scaled(_columns_of(unit, whole, head_dim) // self._count(unit))
            spans.append(Span(start + span.start, start + span.stop))
            start += _columns_of(unit, whole, head_dim)
        if start != outputs_of(layer):
            raise self._refusal(f"{name} has {outputs_of(layer)} columns, its heads make {start}")
        return spans

    def _count(self, unit: HeadUnit) -> int:
        return self._kv_heads if unit is HeadUnit.KV else self._heads

    def _norm(self, name: str, norm: Any, of_queries: bool, head_dim: int) -> None:
        """A norm of queries or keys: of each head by itself, or of all heads together."""
        heads, own = (
            (self._heads, self._share.query) if of_queries else (self._kv_heads, self._share.kv)
        )
        weight = getattr(norm, "weight", None)
        if weight is None or tuple(weight.shape) == (head_dim,):
            return  # one for all heads
        if tuple(weight.shape) == (heads, head_dim):
            self._cutter.parameter(f"{name}.weight", 0, (own,))
            return
        epsilon = getattr(norm, "variance_epsilon", None)
        if tuple(weight.shape) != (heads * head_dim,) or not isinstance(epsilon, float):
            raise self._refusal(f"{name} normalises over heads in a way that cannot be divided")
        span = own.scaled(head_dim)
        counted = of_queries or self._share.first_holder
        spread = SpreadRMSNorm(
            len(span), heads * head_dim, epsilon, counted, weight, self._communicator
        )
        self._cutter.replace(name, spread)
        self._cutter.slices[f"{name}.weight"] = Slice(0, (span,), len(span))

    def _localise(self, attention: Any) -> None:
        """Tell the modelling code this rank's numbers of heads, where it asks for them."""
        if isinstance(getattr(attention, "split_size", None), int):
            attention.split_size = attention.split_size // self._heads * len(self._share.query)
        places = [attention]
        if getattr(attention, "config", None) is not None:
            attention.config = copy.copy(attention.config)
            places.append(attention.config)
        for place in places:
            for names, count in (
                (_HEAD_COUNTS, len(self._share.query)),
                (_KV_HEAD_COUNTS, len(self._share.kv)),
            ):
                for field in names:
                    if isinstance(getattr(place, field, None), int):
                        setattr(place, field, count)

    def _mlp(self, name: str, module: nn.Module) -> None:
        """A module with layers that make columns and one that takes them up."""
        styles = {child: self._style(f"{name}.{child}") for child, _ in module.named_children()}
        layers = {child: module.get_submodule(child) for child in styles}
        columns = [child for child, style in styles.items() if style is Style.COLUMN]
        rows = [child for child, style in styles.items() if style is Style.ROW]
        if not columns and not rows:
            return
        if len(rows) != 1:
            raise self._refusal(f"{name} has layers that make columns and none that takes them up")
        width = inputs_of(layers[rows[0]])
        runs = {child: PACKED_COLUMNS.get(child, 1) for child in columns}
        weights = outputs_of(layers[rows[0]]) + sum(
            runs[child] * inputs_of(layers[child]) for child in columns
        )
        own = self._own_columns(width, weights)
        for child in columns:
            if outputs_of(layers[child]) != runs[child] * width:
                raise self._refusal(f"{name}.{child} does not make {runs[child]} x {width} columns")
            self._cutter.columns(f"{name}.{child}", _in_runs(own, runs[child], width))
        self._cutter.rows(f"{name}.{rows[0]}", own)

    def _experts(self, name: str, experts: nn.Module) -> None:
        """Every rank has some columns of every expert, so that all have the same to do."""
        parameters = dict(experts.named_parameters(recurse=False))
        parts = {
            child: EXPERT_PARTS.get(style_of(f"{name}.{child}", self._plan) or "")
            for child in parameters
        }
        if None in parts.values() or "down_proj" not in parts:
            raise self._refusal(f"how the tensors of {name} are made up is not known")
        known = {child: part for child, part in parts.items() if part is not None}
        width = parameters["down_proj"].shape[known["down_proj"].dim]
        weights = sum(tensor.numel() for tensor in parameters.values()) / width
        own = self._own_columns(width, weights)
        for child, part in known.items():
            if part.runs == 0:
                if self._communicator.rank:
                    self._cutter.slices[f"{name}.{child}"] = Slice(0, (), 0, blank=True)
                continue
            spans = _in_runs(own.scaled(part.step), part.runs, width * part.step)
            self._cutter.parameter(f"{name}.{child}", part.dim, spans)
        sum_outputs(experts, self._communicator)

    def _own_columns(self, width: int, weights_per_column: float) -> Span:
        loads = [load / weights_per_column for load in self._loads]
        return share_columns(width, loads)[self._communicator.rank]

    def _vocabulary(self) -> None:
        embedding, head = self._model.get_input_embeddings(), self._model.get_output_embeddings()
        if not isinstance(embedding, nn.Embedding) or not isinstance(head, nn.Linear):
            raise self._refusal("its embedding or its head is of a kind that cannot be divided")
        names = {module: name for name, module in self._model.named_modules()}
        ranks, rank = self._communicator.size, self._communicator.rank
        spans = share_rows(embedding.num_embeddings, ranks)
        self._cutter.parameter(f"{names[embedding]}.weight", 0, (spans[rank],), len(spans[0]))
        split_embedding(embedding, spans[rank], self._communicator)
        spans = share_rows(head.out_features, ranks)
        self._cutter.replace(names[head], HeadLinear(len(spans[0]), head, self._communicator))
        for parameter in ("weight", "bias") if head.bias is not None else ("weight",):
            own = Slice(0, (spans[rank],), len(spans[0]))
            self._cutter.slices[f"{names[head]}.{parameter}"] = own

    def _style(self, name: str) -> Style | None:
        return known_style(style_of(name, self._plan) or "")

    def _refuse_unknown_styles(self) -> None:
        for name, _ in self._model.named_modules():
            style = style_of(name, self._plan)
            if style is not None and known_style(style) is None:
                raise self._refusal(f"{name} would have to be divided as {style!r}")

    def _refusal(self, reason: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{type(self._model).__name__} cannot be divided over ranks: {reason}; use one rank"
        )


def _columns_of(unit: HeadUnit, share: HeadShare, head_dim: int) -> int:
    heads = share.kv if unit is HeadUnit.KV else share.query
    return len(heads) * head_dim * (3 if unit is HeadUnit.ALL_THREE else 1)


def _in_runs(span: Span, runs: int, width: int) -> list[Span]:
    return [Span(run * width + span.start, run * width + span.stop) for run in range(runs)]
