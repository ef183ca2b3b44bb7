"""Loads a model directory in Hugging Face layout, with our attention in place of the model's.

Only safetensors are read, no code from the directory is run, nothing is fetched. Knows nothing of
blocks or steps.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as transformers_logging

from blockyard.workers.attention import ATTENTION_NAME, block_attention
from blockyard.workers.contract import UnsupportedModel, refuse_config
from blockyard.workers.description import ModelFilesError
from blockyard.workers.model import DecoderModel
from blockyard.workers.progress import ProgressReporter

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
) -> DecoderModel:
    """Load a model for inference and prove that it can be served.

    Args:
        directory: config, tokenizer and safetensors.
        device: where the weights go.
        dtype: `auto` (float32 on CPU, the checkpoint's own elsewhere) or a name of one.
        context_tokens: longest context that will be used.
        progress: told of the load.

    Raises:
        ModelFilesError: weights are missing or in a form that is not read.
        UnsupportedModel: the model needs something that cannot be served.
        ValueError: no such dtype.
    """
    _refuse_weights(directory)
    config = _read_config(directory)
    refuse_config(config.to_dict(), config.get_text_config().to_dict(), context_tokens)
    register_attention()
    # One process serves one model and shows its own bars.
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    total = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    progress.stage(f"loading {directory.name}", total)
    chosen = _resolve_dtype(dtype, config, device)
    try:
        load: Any = AutoModelForCausalLM.from_pretrained
        model, report = load(
            directory,
            config=config,
            attn_implementation=ATTENTION_NAME,
            dtype=chosen,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except ValueError as error:
        raise UnsupportedModel(f"{config.model_type} cannot be loaded: {error}") from error
    except (OSError, SafetensorError) as error:
        raise ModelFilesError(f"the weights in {directory} cannot be read: {error}") from error
    # transformers fills what is missing with random numbers and carries on.
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelFilesError(
            f"{directory} lacks {len(missing)} of the model's tensors, such as {missing[0]}; "
            "fetch the model again"
        )
    decoder = DecoderModel(model.to(device).eval().requires_grad_(False), context_tokens)
    progress.advance(total)
    return decoder


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
