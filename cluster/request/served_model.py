"""What a client's `model` field names: a model, or an adapter of one."""

from dataclasses import dataclass

from blockyard.cluster.adapters.adapter_directory import adapters_of
from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.request.api_error import RETRY_AFTER_SECONDS, ApiCode, ApiError
from blockyard.cluster.request.limits import MAX_MODEL_NAME_CHARACTERS
from blockyard.scheduler.block_keys import NO_EXTRAS, PrefixExtras
from blockyard.workers.adapter_description import AdapterDescription
from blockyard.workers.description import ModelDescription

__all__ = ["ServedModel", "find_model", "find_served", "served_models"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, as it is or with an adapter."""

    model: ModelDescription
    adapter: AdapterDescription | None = None

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.adapter.name if self.adapter is not None else self.model.name

    @property
    def extras(self) -> PrefixExtras:
        """What decides the KV of its prefixes besides their tokens."""
        if self.adapter is None:
            return NO_EXTRAS
        return PrefixExtras(adapter=self.adapter.name, adapter_version=self.adapter.version)


def served_models(dispatcher: Dispatcher) -> list[ServedModel]:
    """Everything that requests may name: each model, then its adapters."""
    return [
        served
        for model in dispatcher.models()
        for served in (
            ServedModel(model),
            *(ServedModel(model, adapter) for adapter in adapters_of(dispatcher, model.name)),
        )
    ]


def find_served(dispatcher: Dispatcher, name: str, field: str) -> ServedModel:
    """The model or adapter of that name; the default model for an empty name.

    Raises:
        ApiError: NOT_FOUND naming `field`; UNAVAILABLE while no model is served.
    """
    return _find(served_models(dispatcher), name, field)


def find_model(dispatcher: Dispatcher, name: str, field: str) -> ModelDescription:
    """The same of models alone."""
    return _find([ServedModel(model) for model in dispatcher.models()], name, field).model


def _find(known: list[ServedModel], name: str, field: str) -> ServedModel:
    if not known:
        raise ApiError(
            ApiCode.UNAVAILABLE,
            field,
            "no model is loaded yet; try again soon",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
    if not name:
        return known[0]
    for served in known:
        if served.name == name:
            return served
    shown = name if len(name) <= MAX_MODEL_NAME_CHARACTERS else name[:40] + "..."
    names = ", ".join(served.name for served in known)
    raise ApiError(ApiCode.NOT_FOUND, field, f"{shown!r} is not served here; served: {names}")
