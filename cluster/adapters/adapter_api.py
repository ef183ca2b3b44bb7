"""Adapters loaded and unloaded as callers ask for it, whatever the transport.

Nobody may unless the server was started so, and then only from below one directory. Loads no torch.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.cluster.adapters.adapter_directory import AdapterDirectory, adapters_of
from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.request.admin import AdminDoor
from blockyard.cluster.request.api_error import ApiCode, ApiError, from_refusal
from blockyard.cluster.request.caller import Caller
from blockyard.cluster.request.limits import check_known_fields, invalid
from blockyard.cluster.request.malformed_message import MalformedMessage
from blockyard.cluster.request.served_model import find_model, served_models
from blockyard.cluster.states.weight_files import OutsideRoot, directory_below
from blockyard.protos import cluster_pb2 as pb
from blockyard.scheduler.request import RequestRefused
from blockyard.workers.adapter_description import (
    AdapterDescription,
    AdapterRefused,
    check_adapter_name,
    describe_adapter,
)

__all__ = ["AdapterApi", "AdapterLimits", "adapter_message"]

_LONGEST_PATH = 4096


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """What may be loaded for one model.

    Attributes:
        root: directory that adapters must be below; None: none are loaded.
        max_rank: the widest that is taken.
    """

    root: str | None
    max_rank: int


class AdapterApi:
    """Of one server.

    Args:
        dispatcher: knows the models and their adapters.
        door: who may change them.
        limits: by model.
    """

    def __init__(
        self, dispatcher: Dispatcher, door: AdminDoor, limits: Mapping[str, AdapterLimits]
    ) -> None:
        self._dispatcher = dispatcher
        self._door = door
        self._limits = limits

    async def load(self, request: Any, caller: Caller) -> pb.Adapter:
        """Answer `LoadAdapterRequest`. Raises `ApiError`."""
        directory, model = self._checked(request, caller)
        try:
            check_adapter_name(request.name)
        except AdapterRefused as refusal:
            raise invalid("name", str(refusal)) from None
        for served in served_models(self._dispatcher):
            if served.name == request.name and (not served.adapter or served.model.name != model):
                raise ApiError(
                    ApiCode.ALREADY_EXISTS, "name", f"{request.name!r} is served already"
                )
        adapter = await self._describe(request, self._limits.get(model))
        try:
            await directory.load_adapter(model, adapter)
        except RequestRefused as refusal:
            raise from_refusal(refusal, {"": "name", "adapter": "path"}) from None
        return adapter_message(adapter)

    async def unload(self, request: Any, caller: Caller) -> pb.Adapter:
        """Answer `UnloadAdapterRequest`. Raises `ApiError`."""
        directory, model = self._checked(request, caller)
        for adapter in adapters_of(self._dispatcher, model):
            if adapter.name == request.name:
                try:
                    await directory.unload_adapter(model, adapter.name)
                except RequestRefused as refusal:
                    raise from_refusal(refusal) from None
                return adapter_message(adapter)
        shown = request.name[:80]
        raise ApiError(ApiCode.NOT_FOUND, "name", f"{shown!r} is no adapter of {model}")

    def _checked(self, request: Any, caller: Caller) -> tuple[AdapterDirectory, str]:
        """Who can change adapters, and the model whose they are."""
        self._door.check(caller)
        if isinstance(request, MalformedMessage):
            raise invalid("request", f"not a valid {request.expected} message")
        check_known_fields("request", request)
        if not isinstance(self._dispatcher, AdapterDirectory):
            raise ApiError(ApiCode.UNAVAILABLE, "", "no engine here takes adapters")
        return self._dispatcher, find_model(self._dispatcher, request.model, "model").name

    async def _describe(self, request: Any, limits: AdapterLimits | None) -> AdapterDescription:
        if limits is None or limits.root is None:
            raise invalid(
                "path", "cannot be loaded: start the server with `blockyard serve --lora-root`"
            )
        if not request.path or len(request.path) > _LONGEST_PATH:
            raise invalid("path", "is empty or too long; name a directory of an adapter")
        try:
            place = await asyncio.to_thread(
                directory_below, Path(limits.root), request.path, "the directory of adapters"
            )
            return await asyncio.to_thread(describe_adapter, place, request.name, limits.max_rank)
        except (OutsideRoot, AdapterRefused) as refusal:
            raise invalid("path", f"cannot be loaded: {refusal}") from None


def adapter_message(adapter: AdapterDescription) -> pb.Adapter:
    """An adapter as callers are told of it."""
    return pb.Adapter(name=adapter.name, version=adapter.version, rank=adapter.rank)
