"""The application as a Serve config file names it, for clusters that have no driver of ours.

`import_path: blockyard.cluster.service:build` with `args` in the names of `ServeConfig`; a Helm
release on KubeRay deploys this way. Knows nothing of Kubernetes. Units are in the names.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ray.serve import Application

from blockyard.cluster.adapters.named_adapters import named_adapters
from blockyard.cluster.app import GROUP_DEPLOYMENT, ServedModel, build_app
from blockyard.cluster.config import ServeConfig
from blockyard.cluster.logs import LogConfig
from blockyard.cluster.tls import TlsFiles
from blockyard.scheduler.config import PreemptionPolicy, Speculation
from blockyard.workers.catalog import WITNESS_MODEL, SilentProgress, resolve_model
from blockyard.workers.config import DEFAULT_ADAPTER_RANK, WorkerKind
from blockyard.workers.description import describe_model
from blockyard.workers.draft_description import find_draft

__all__ = ["OWN_OF_A_MODEL", "SHARED", "build", "served_models"]

OWN_OF_A_MODEL = frozenset(
    {
        *(
            "device",
            "dtype",
            "kv_dtype",
            "weights",
            "cuda_graphs",
            "block_size",
            "num_blocks",
            "num_host_blocks",
            "kv_memory_bytes",
        ),
        *("threads", "max_running", "max_step_tokens", "max_waiting", "preemption"),
        *("pipeline_depth", "speculate", "draft_model", "draft_weights"),
        *("tool_call_parser", "reasoning_parser"),
        *("num_groups", "num_ranks", "stall_seconds", "group_resource"),
        *("min_groups", "max_groups"),
        *("adapters", "max_adapters", "max_adapter_rank", "adapters_root"),
        *("scale_queue_seconds", "scale_quiet_seconds", "scale_idle_seconds"),
    }
)
_NOT_FROM_ARGS = frozenset({"model", "kind", "draft"})
SHARED = frozenset(field.name for field in fields(ServeConfig)) - OWN_OF_A_MODEL - _NOT_FROM_ARGS


def build(args: dict[str, Any]) -> Application:
    """Build the application; called by Ray Serve.

    `args` has `models`, a list, and beside it what all of them share: ports, ingresses, drain. A
    model has `model` (what `blockyard serve --model` takes), `name` (what clients call it; the
    default is `model` itself), `deployment` (of its groups), and what is its own: `device` and so
    on. Its files must be where the same cache or directory is on every node.

    Raises:
        ValueError: a field is unknown, missing or refused; the message names it.
        ModelUnavailable: a model's files are not there and cannot be fetched.
    """
    return build_app(served_models(args))


def served_models(args: Mapping[str, Any]) -> tuple[ServedModel, ...]:
    """What `build` deploys, free of Ray. Raises what `build` raises."""
    listed = args.get("models")
    if not isinstance(listed, list) or not listed:
        raise ValueError("models is missing or empty; list at least one, each with `model`")
    shared = _known({key: args[key] for key in args if key != "models"}, SHARED, "args")
    return tuple(
        _served_model(entry, f"models[{index}]", shared) for index, entry in enumerate(listed)
    )


def _served_model(entry: Any, place: str, shared: Mapping[str, Any]) -> ServedModel:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("model"), str):
        raise ValueError(f"{place} has no `model`; name a model, a repository or a directory")
    values = dict(entry)
    model = values.pop("model")
    directory = resolve_model(model, None, SilentProgress())
    name = values.pop("name", directory.name if Path(model).is_dir() else model)
    deployment = values.pop("deployment", GROUP_DEPLOYMENT)
    values = _known(values, OWN_OF_A_MODEL, place)
    try:
        if "preemption" in values:
            values["preemption"] = PreemptionPolicy(values["preemption"])
        if "adapters" in values:
            max_rank = values.get("max_adapter_rank", DEFAULT_ADAPTER_RANK)
            values["adapters"] = named_adapters(values["adapters"], max_rank)
        if "speculate" in values:
            values["speculate"] = Speculation(values["speculate"])
        described = describe_model(directory, name)
        kind = WorkerKind.WITNESS if model == WITNESS_MODEL else WorkerKind.MODEL
        if (draft := values.pop("draft_model", None)) is not None:
            values["draft"] = find_draft(draft, kind, described, SilentProgress())
        if isinstance(shared.get("tls"), Mapping):
            shared = {**shared, "tls": TlsFiles(**shared["tls"])}
        if isinstance(shared.get("logs"), Mapping):
            shared = {**shared, "logs": LogConfig(**shared["logs"])}
        config = ServeConfig(
            model=described,
            kind=kind,
            **shared,
            **values,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place} ({name}): {error}") from error
    # Whoever builds this sees the cluster before its nodes have come, so nobody can look for GPUs.
    if config.device == "auto":
        raise ValueError(f"{place} ({name}): device is 'auto'; say cpu or cuda")
    return ServedModel(config, config.device == "cuda", deployment)


def _known(values: Mapping[str, Any], allowed: frozenset[str], place: str) -> dict[str, Any]:
    unknown = sorted(set(values) - allowed)
    if unknown:
        raise ValueError(
            f"{place} has {', '.join(unknown)}; known are {', '.join(sorted(allowed))}"
        )
    return dict(values)
