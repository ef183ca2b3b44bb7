"""Loads a model directory in Hugging Face layout, with our attention in place of the model's.

Only safetensors are read, no code from the directory is run, nothing is fetched. Knows nothing of
blocks or steps.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PretrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from blockyard.workers.adapter_sites import (
    LinearSite,
    LinearSites,
    linear_shapes,
    linear_sites,
)
from blockyard.workers.attention import ATTENTION_NAME, block_attention
from blockyard.workers.checkpoint import Checkpoint
from blockyard.workers.checkpoint_names import slices_by_tensor
from blockyard.workers.collectives import Communicator
from blockyard.workers.contract import UnsupportedModel, refuse_config
from blockyard.workers.description import ModelFilesError
from blockyard.workers.model import DecoderModel
from blockyard.workers.packed_linears import packing_of
from blockyard.workers.progress import ProgressReporter
from blockyard.workers.sharding import shard_model

__all__ = ["load_model", "register_attention"]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def register_attention() -> None:
    """Make our attention known to transformers under its name. Safe to call again."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, block_attention)


def load_model(
    directory: Path,
    device: torch.device,
    dtype: str,
    context_tokens: int,
    progress: ProgressReporter,
    communicator: Communicator | None = None,
) -> DecoderModel:
    """Load a rank's part of a model for inference and prove that it can be served.

    Args:
        directory: config, tokenizer and safetensors.
        device: where the weights go.
        dtype: `auto` (float32 on CPU, the checkpoint's own elsewhere) or a name of one.
        context_tokens: longest context that will be used.
        progress: told of the load.
        communicator: this rank's end of its group, which the model keeps; None for a rank alone.

    Raises:
        ModelFilesError: weights are missing or in a form that is not read.
        UnsupportedModel: the model needs something that cannot be served.
        ValueError: no such dtype.
    """
    _refuse_weights(directory)
    config = _read_config(directory)
    packing = packing_of(config.to_dict().get("quantization_config"))
    if packing is not None:
        del config.quantization_config  # or transformers would look for kernels of its own
    refuse_config(config.to_dict(), config.get_text_config().to_dict(), context_tokens)
    register_attention()
    # One process serves one model and shows its own bars.
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    chosen = _resolve_dtype(dtype, config, device)
    with Checkpoint(directory, progress, packing) as checkpoint:
        progress.stage(f"loading {directory.name}", checkpoint.total_bytes)
        model, sites = _read_model(config, checkpoint, chosen, communicator or Communicator())
    return DecoderModel(model.to(device).eval().requires_grad_(False), context_tokens, sites)


def _read_model(
    config: PretrainedConfig,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    communicator: Communicator,
) -> tuple[Any, LinearSites]:
    """transformers builds the model, we divide it, transformers fills in what we read."""
    sites: dict[str, LinearSite] = {}
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if family is None:
        raise UnsupportedModel(f"{config.model_type} is no decoder that transformers can build")

    class Divided(family):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            shapes = linear_shapes(self)
            slices = shard_model(self, communicator)
            sites.update(linear_sites(shapes, slices, self))
            checkpoint.keep(slices_by_tensor(self, checkpoint, slices).get)

    # transformers looks things up by the class's name and by where it is defined.
    Divided.__name__, Divided.__module__ = family.__name__, family.__module__
    try:
        model, report = (Divided if communicator.size > 1 else family).from_pretrained(
            None,
            config=config,
            state_dict=checkpoint.tensors(),
            attn_implementation=ATTENTION_NAME,
            dtype=dtype,
            output_loading_info=True,
        )
    except ValueError as error:
        raise UnsupportedModel(f"{config.model_type} cannot be loaded: {error}") from error
    except (OSError, SafetensorError) as error:
        raise ModelFilesError(f"the weights cannot be read: {error}") from error
    # transformers fills what is missing with random numbers and carries on.
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelFilesError(
            f"the checkpoint lacks {len(missing)} of the model's tensors, such as {missing[0]}; "
            "fetch the model again"
        )
    return model, sites or linear_sites(linear_shapes(model), {}, model)


def _refuse_weights(directory: Path) -> None:
    if any(directory.glob("*.safetensors")):
        return
    pickles = sorted(path.name for path in directory.glob("*.bin"))
    pickles += sorted(path.name for path in directory.glob("*.pt*"))
    if pickles:
        raise ModelFilesError(
            f"{directory} holds its weights as {', '.join(pickles)}, which can run code when "
            "opened and are not read; convert them to safetensors"
        )
    raise ModelFilesError(f"{directory} holds no *.safetensors; give a complete model directory")


def _read_config(directory: Path) -> PretrainedConfig:
    try:
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        config: Any = AutoConfig.from_pretrained(
            directory, trust_remote_code=False, local_files_only=True
        )
    except (OSError, KeyError) as error:
        raise ModelFilesError(f"{directory}/config.json cannot be read: {error}") from error
    except ValueError as error:
        own_code = "auto_map" in raw if isinstance(raw, dict) else False
        reason = (
            "it comes with modelling code of its own, which is never run" if own_code else error
        )
        raise UnsupportedModel(f"{directory.name} cannot be served: {reason}") from error
    assert isinstance(config, PretrainedConfig)
    return config


def _resolve_dtype(name: str, config: PretrainedConfig, device: torch.device) -> torch.dtype:
    if name != "auto":
        if name not in _DTYPES:
            raise ValueError(f"dtype is {name!r}; known are auto, {', '.join(_DTYPES)}")
        return _DTYPES[name]
    if device.type == "cpu":
        return torch.float32
    own = config.get_text_config().dtype
    return own if isinstance(own, torch.dtype) else torch.bfloat16
