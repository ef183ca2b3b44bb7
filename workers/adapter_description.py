"""What an adapter's own files say about it: a directory in PEFT's layout, read without torch.

An adapter adds to linears of a model a product of two narrow matrices (LoRA). Its version is a
digest of its files: whoever has the same version computes the same. What cannot be served is
refused by the name of what asks for it. Units: rank is the narrow width.
"""

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

__all__ = [
    "CONFIG_FILE",
    "WEIGHTS_FILE",
    "AdapterDescription",
    "AdapterRefused",
    "check_adapter_name",
    "describe_adapter",
    "read_adapter_config",
]

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

MAX_NAME_CHARACTERS = 128
_VERSION_BYTES = 16
_READ_BYTES = 1 << 20
_LARGEST_CONFIG = 1 << 20
"""Bytes that are read of a configuration; what is longer ends in the middle, and is no JSON."""
_SHOWN_CHARACTERS = 200
_LARGEST = 1e6
"""Of ranks and scales: far above whatever is trained."""

_NEEDED = ("r", "lora_alpha")
_READ = frozenset(
    {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias"}
)
_MEANS_NOTHING_HERE = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "corda_config", "eva_config"),
        *("exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights"),
        *("layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout"),
        *("megatron_config", "megatron_core", "peft_version", "qalora_group_size", "revision"),
        *("runtime_config", "target_modules", "task_type", "lora_ga_config"),
    }
)
"""They speak of training, or of what the names and shapes of the tensors say better."""

_REASONS = {
    "use_dora": "it is a DoRA, which scales whole weights anew",
    "modules_to_save": "it replaces whole modules of the model",
    "lora_bias": "it adds biases",
    "target_parameters": "it changes parameters that are no linears, such as those of experts",
    "trainable_token_indices": "it changes rows of the embedding",
    "layer_replication": "it repeats layers of the model",
    "alora_invocation_tokens": "it takes effect only after certain tokens",
    "use_qalora": "it is a QALoRA, which pools what goes in",
}
_HARMLESS_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways to begin training that leave the weights of the model as they are."""


class AdapterRefused(Exception):
    """An adapter cannot be had or served; the message says why, and never where it is."""


@dataclass(frozen=True, slots=True)
class AdapterDescription:
    """One adapter.

    Attributes:
        name: what clients call it, in place of a model's name.
        directory: holds its files; the same on every node.
        version: digest of these.
        rank: the widest of its ranks.
    """

    name: str
    directory: str
    version: str
    rank: int

    @property
    def adapter_id(self) -> str:
        """What engines and workers call it, as `PrefixExtras.adapter_id` does."""
        return f"{self.name}@{self.version}"


def describe_adapter(directory: str | Path, name: str, max_rank: int) -> AdapterDescription:
    """What the files of an adapter say. Reads them whole, for the version.

    Raises:
        AdapterRefused: they are not there, damaged, or ask for what is not served.
    """
    check_adapter_name(name)
    place = Path(directory)
    config = read_adapter_config(place)
    weights = place / WEIGHTS_FILE
    if not weights.is_file():
        others = sorted(path.name for path in place.glob("adapter_model.*"))
        reason = (
            f" but {', '.join(others)}, which can run code when opened and is not read; convert it "
            "to safetensors"
            if others
            else ""
        )
        raise AdapterRefused(f"its directory holds no {WEIGHTS_FILE}{reason}")
    ranks = [config["r"], *(config.get("rank_pattern") or {}).values()]
    rank = max(ranks)
    if rank > max_rank:
        raise AdapterRefused(
            f"its rank is {rank}, this server takes up to {max_rank}; start it with a larger "
            "max_adapter_rank (--max-lora-rank)"
        )
    try:
        version = _digest(place / CONFIG_FILE, weights)
    except OSError as error:
        raise AdapterRefused(f"its files cannot be read: {error.strerror}") from error
    return AdapterDescription(name, str(place), version, rank)


def check_adapter_name(name: str) -> None:
    """Refuse a name that could not stand where a model's name does.

    Raises:
        AdapterRefused: it is empty, too long, or has characters that names do not have.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/-]*", name) or len(name) > MAX_NAME_CHARACTERS:
        raise AdapterRefused(
            f"{name[:80]!r} is no name for an adapter: up to {MAX_NAME_CHARACTERS} letters, "
            "digits and . _ : / -, the first a letter or a digit"
        )


def read_adapter_config(directory: Path) -> dict[str, Any]:
    """An adapter's configuration, all of which is served.

    Raises:
        AdapterRefused: it is not there, damaged, or asks for what is not served.
    """
    path = directory / CONFIG_FILE
    try:
        with _open_regular(path) as file:
            config = json.loads(file.read(_LARGEST_CONFIG).decode())
    except FileNotFoundError:
        raise AdapterRefused(f"its directory holds no {CONFIG_FILE}") from None
    except OSError as error:
        raise AdapterRefused(f"its {CONFIG_FILE} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise AdapterRefused(f"its {CONFIG_FILE} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise AdapterRefused(f"its {CONFIG_FILE} is not a JSON object")
    _refuse_kinds(config)
    for field in _NEEDED:
        if not _is_positive(config.get(field)):
            raise AdapterRefused(f"{field} is {_shown(config.get(field))} in its configuration")
    for field in ("rank_pattern", "alpha_pattern"):
        pattern = config.get(field) or {}
        if not isinstance(pattern, Mapping) or not all(map(_is_positive, pattern.values())):
            raise AdapterRefused(f"{field} is not an object of numbers in its configuration")
    if not all(
        isinstance(r, int) for r in [config["r"], *(config.get("rank_pattern") or {}).values()]
    ):
        raise AdapterRefused("a rank in its configuration is no whole number")
    return config


def _refuse_kinds(config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise AdapterRefused(
            f"its peft_type is {_shown(config.get('peft_type'))}; adapters of type LORA are served"
        )
    for field, reason in _REASONS.items():
        if config.get(field):
            raise AdapterRefused(
                f"{field} is {_shown(config[field])}: {reason}, which is not served"
            )
    if config.get("bias") not in (None, "none"):
        raise AdapterRefused(
            f"bias is {_shown(config['bias'])}: it changes biases, which is not served"
        )
    start = config.get("init_lora_weights")
    if start not in _HARMLESS_STARTS:
        raise AdapterRefused(
            f"init_lora_weights is {_shown(start)}: it belongs to changed weights of the model; "
            "save it converted to an ordinary LoRA"
        )
    known = _READ | _MEANS_NOTHING_HERE | _REASONS.keys()
    for field in sorted(config.keys() - known):
        if config[field]:
            raise AdapterRefused(
                f"{_shown(field)} is {_shown(config[field])}, of which nothing is known here"
            )


def _shown(value: object) -> str:
    """A value from a file as far as it fits into a message."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."


def _is_positive(value: object) -> bool:
    """Whether it is a number above 0 that a float can be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _LARGEST


def _open_regular(path: Path) -> BinaryIO:
    """Open a file, and nothing that would make a reader wait or never end.

    Raises:
        AdapterRefused: it is a pipe, a device, a socket or a directory.
    """
    # Opened before it is looked at, so that it cannot be another one by then.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise AdapterRefused(f"its {path.name} is no regular file")
    return os.fdopen(handle, "rb")


def _digest(*paths: Path) -> str:
    digest = blake2b(digest_size=_VERSION_BYTES, person=b"blockyard.lora")
    for path in paths:
        with _open_regular(path) as file:
            digest.update(os.fstat(file.fileno()).st_size.to_bytes(8, "little"))
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
    return digest.hexdigest()
