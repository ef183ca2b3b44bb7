"""A rank's part of an adapter's matrices, read from its files and proved to fit the model.

The first matrix of a pair takes the inputs of a linear to a few columns, the second takes those to
its outputs; the pair is divided over ranks as the linear is. Knows no steps. Units: columns.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from blockyard.workers.adapter_description import (
    WEIGHTS_FILE,
    AdapterDescription,
    AdapterRefused,
    describe_adapter,
    read_adapter_config,
)
from blockyard.workers.adapter_sites import LinearSite, LinearSites
from blockyard.workers.partition import Span

__all__ = ["AdapterPair", "read_adapter"]

_NAME = re.compile(r"base_model\.model\.(?P<site>.+)\.lora_(?P<half>[AB])\.weight")
_SPECIAL = {
    "lora_magnitude_vector": "it is a DoRA, which scales whole weights anew",
    "lora_embedding_": "it changes the embedding",
    "bias": "it changes biases",
}


class AdapterPair(NamedTuple):
    """What is added to one linear: `(x @ down.T) @ up`.

    `down` is `[rank, own inputs]`, `up` is `[rank, own outputs]` with the scale in it.
    """

    down: torch.Tensor
    up: torch.Tensor


def read_adapter(
    adapter: AdapterDescription, sites: LinearSites, max_rank: int, dtype: torch.dtype
) -> dict[str, AdapterPair]:
    """This rank's part of an adapter, by the linear that each pair adds to.

    Args:
        adapter: as it was described when somebody asked for it.
        sites: linears of the model.
        max_rank: the widest that is taken.
        dtype: of the answer.

    Raises:
        AdapterRefused: its files have changed since, or do not fit the model.
    """
    directory = Path(adapter.directory)
    if describe_adapter(directory, adapter.name, max_rank).version != adapter.version:
        raise AdapterRefused(
            "its files are not those that were asked for: they have changed, or differ between "
            "nodes"
        )
    config = read_adapter_config(directory)
    try:
        with safe_open(directory / WEIGHTS_FILE, framework="pt") as file:
            halves = _halves(list(file.keys()))
            return {
                name: _pair(file, config, halves[name], _site(name, sites), max_rank, dtype)
                for name in sorted(halves)
            }
    except OSError as error:
        raise AdapterRefused(f"its {WEIGHTS_FILE} cannot be read: {error.strerror}") from error
    except SafetensorError as error:
        raise AdapterRefused(f"its {WEIGHTS_FILE} is damaged: {error}") from error


def _halves(tensors: list[str]) -> dict[str, dict[str, str]]:
    """By linear, the names of both its tensors."""
    found: dict[str, dict[str, str]] = {}
    for tensor in tensors:
        match = _NAME.fullmatch(tensor)
        if match is None:
            reasons = (why for part, why in _SPECIAL.items() if part in tensor)
            raise AdapterRefused(
                f"it holds {tensor}, which is not served: "
                + next(reasons, "only pairs of lora_A and lora_B of linears are")
            )
        found.setdefault(match["site"], {})[match["half"]] = tensor
    if not found:
        raise AdapterRefused("it holds no tensors")
    for site, names in found.items():
        if len(names) < 2:
            raise AdapterRefused(f"it holds {next(iter(names.values()))} alone; {site} needs both")
    return found


def _site(name: str, sites: LinearSites) -> LinearSite:
    site = sites.get(name)
    if site is None:
        kinds = sorted({known.rpartition(".")[2] for known in sites})
        raise AdapterRefused(
            f"it targets {name}, which is no linear inside a layer of this model; such are "
            f"{', '.join(kinds)}"
        )
    return site


def _pair(
    file: Any,
    config: Mapping[str, Any],
    names: Mapping[str, str],
    site: LinearSite,
    max_rank: int,
    dtype: torch.dtype,
) -> AdapterPair:
    down, up = file.get_slice(names["A"]), file.get_slice(names["B"])
    shapes = tuple(down.get_shape()), tuple(up.get_shape())
    rank = shapes[0][0] if shapes[0] else 0
    if shapes != ((rank, site.inputs), (site.outputs, rank)) or not rank:
        raise AdapterRefused(
            f"its matrices for {site.name} are {_shape(shapes[0])} and {_shape(shapes[1])}; the "
            f"model's linear takes {site.inputs} columns and makes {site.outputs}: it was made for "
            "another model"
        )
    if rank > max_rank:
        raise AdapterRefused(f"its rank at {site.name} is {rank}; this server takes {max_rank}")
    inputs = slice(None) if site.input_span is None else _bounds(site.input_span)
    spans = site.output_spans
    columns = [slice(None)] if spans is None else [*map(_bounds, spans)]
    first = down[:, inputs].float().to(dtype)
    second = torch.cat([up[span, :].float() for span in columns])
    scaled = (second.T * _scale(config, site.name, rank)).to(dtype).contiguous()
    for matrix, tensor in ((first, names["A"]), (scaled, names["B"])):
        # One would make zeros of other adapters' rows into no numbers.
        if not bool(torch.isfinite(matrix).all()):
            raise AdapterRefused(
                f"{tensor} holds values that are no finite numbers, or become none as "
                f"{str(dtype).removeprefix('torch.')} with its scale"
            )
    return AdapterPair(first, scaled)


def _scale(config: Mapping[str, Any], site: str, rank: int) -> float:
    alpha = float(_of_pattern(config.get("alpha_pattern"), site, config["lora_alpha"]))
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _of_pattern(patterns: Mapping[str, float] | None, site: str, usual: float) -> float:
    """What a pattern of the configuration says of a linear: the first whose end of a name fits."""
    for pattern, value in (patterns or {}).items():
        try:
            if re.fullmatch(rf"(.*\.)?({pattern})", site):
                return value
        except re.error as error:
            raise AdapterRefused(f"{pattern!r} in its configuration is no pattern") from error
    return usual


def _bounds(span: Span) -> slice:
    return slice(span.start, span.stop)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
