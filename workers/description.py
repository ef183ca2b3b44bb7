"""What a model's own JSON files say about it. Reads no weights and imports no torch.

The ingress and the engine need these few facts long before (and without) loading the model.
"""

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["ModelDescription", "ModelFilesError", "SamplingDefaults", "describe_model"]


class ModelFilesError(Exception):
    """A model directory lacks something or holds something that cannot be served."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a model's makers advise where a client says nothing; None where they say nothing.

    Read from `generation_config.json`. Values are not checked: a request that gets one is.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Facts of a model directory in Hugging Face layout.

    Attributes:
        name: what clients put into the `model` field.
        directory: absolute path.
        architecture: class name of the modelling code, such as `LlamaForCausalLM`.
        context_tokens: longest prompt plus completion.
        vocab_size: rows of the embedding; token ids are below it.
        eos_token_ids: every id that ends a turn, from config and generation config.
        sampling: how its makers advise to sample.
    """

    name: str
    directory: str
    architecture: str
    context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    sampling: SamplingDefaults = SamplingDefaults()


def describe_model(directory: Path | str, name: str) -> ModelDescription:
    """Read `config.json` and, if there, `generation_config.json`.

    Raises:
        ModelFilesError: a file or a field is missing or malformed; the message names it.
    """
    folder = Path(directory).absolute()
    config = _read_json(folder / "config.json")
    text = config.get("text_config", config)
    generation = (
        _read_json(folder / "generation_config.json")
        if (folder / "generation_config.json").exists()
        else {}
    )
    eos: list[int] = []
    for source in (generation, config, text):
        for token in _as_list(source.get("eos_token_id")):
            if token not in eos:
                eos.append(token)
    return ModelDescription(
        name=name,
        directory=str(folder),
        architecture=str((config.get("architectures") or ["unknown"])[0]),
        context_tokens=_positive(text, "max_position_embeddings", folder),
        vocab_size=_positive(text, "vocab_size", folder),
        eos_token_ids=tuple(eos),
        sampling=_sampling(generation),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFilesError(
            f"{path} does not exist; give a directory in Hugging Face layout "
            "(config.json, tokenizer.json, *.safetensors)"
        ) from None
    except ValueError as error:
        raise ModelFilesError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFilesError(f"{path} holds a {type(value).__name__}, not an object")
    return value


def _sampling(generation: dict[str, Any]) -> SamplingDefaults:
    advised: dict[str, Any] = {}
    for field in fields(SamplingDefaults):
        value = generation.get(field.name)
        kinds = (int,) if field.name == "top_k" else (int, float)
        if isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value):
            advised[field.name] = value
    return SamplingDefaults(**advised)


def _as_list(value: object) -> list[int]:
    if isinstance(value, list):
        return [token for token in value if isinstance(token, int)]
    return [value] if isinstance(value, int) else []


def _positive(config: dict[str, Any], field: str, folder: Path) -> int:
    value = config.get(field)
    if not isinstance(value, int) or value < 1:
        raise ModelFilesError(f"{folder}/config.json: {field} is {value!r}; need a positive number")
    return value
