"""Which tensors of a checkpoint make up which parameters of a model, and so which part to read.

transformers renames tensors while loading, and joins those of single experts to one. What it says
about that is turned round here: from the part of a parameter that a rank keeps to the part of each
tensor that goes into it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from blockyard.workers.checkpoint import Checkpoint, Slice
from blockyard.workers.contract import UnsupportedModel
from blockyard.workers.partition import Span

__all__ = ["slices_by_tensor"]


def slices_by_tensor(
    model: Any, checkpoint: Checkpoint, slices: Mapping[str, Slice]
) -> dict[str, Slice]:
    """Parts of the checkpoint's tensors, from parts of the model's parameters.

    Args:
        model: as transformers has built it.
        checkpoint: what is read.
        slices: by parameter, what this rank keeps.

    Raises:
        UnsupportedModel: tensors become a parameter in a way that parts cannot follow.
    """
    transforms = get_model_conversion_mapping(model)
    renamings = [entry for entry in transforms if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in transforms if isinstance(entry, WeightConverter)]
    parameters = model.state_dict()
    found: dict[str, Slice] = {}
    for tensor in checkpoint.tensors():
        name, pattern = rename_source_key(
            tensor, renamings, converters, model.base_model_prefix, parameters
        )
        if name not in parameters and tensor in parameters:
            name, pattern = tensor, None
        part = slices.get(name)
        if part is None:
            continue
        if pattern is not None:
            converter = next(entry for entry in converters if pattern in entry.source_patterns)
            part = _part_of_one_expert(name, converter, pattern, checkpoint.shape(tensor), part)
        found[tensor] = part
    return found


def _part_of_one_expert(
    name: str, converter: WeightConverter, pattern: str, shape: tuple[int, ...], part: Slice
) -> Slice:
    """From a part of all experts' tensor, `[experts, ...]`, to the same of one expert's."""
    merge, *rest = converter.operations
    joined = rest[0] if rest else None
    known = isinstance(merge, MergeModulelist) and merge.dim == 0 and len(rest) < 2
    if not known or not isinstance(joined, Concatenate | None) or part.dim == 0:
        raise UnsupportedModel(
            f"{name} is put together from {', '.join(converter.source_patterns)} in a way that "
            "cannot be divided over ranks; use one rank"
        )
    dim = part.dim - 1
    if joined is None or joined.dim != part.dim:
        return replace(part, dim=dim)
    # Each of the joined tensors brings one run of columns, with a span of its own.
    number = converter.source_patterns.index(pattern)
    start = number * shape[dim]
    span = Span(part.spans[number].start - start, part.spans[number].stop - start)
    return Slice(dim, (span,), len(span))
