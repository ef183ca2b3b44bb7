"""The groups that an ingress knows of, and its connection to each engine.

Told of groups by whoever talks to the central scheduler; connects to an engine when it is first
needed. Knows nothing of binding by books.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping

from blockyard.cluster.engine_link import EngineLink
from blockyard.cluster.messages import GroupIdentity
from blockyard.scheduler.request import RefusalCode, RequestRefused
from blockyard.workers.adapter_description import AdapterDescription

__all__ = ["GroupLinks"]

logger = logging.getLogger(__name__)

_UNREACHABLE_MESSAGE = "the group cannot be reached; try again shortly"


class GroupLinks:
    """What an ingress can reach."""

    def __init__(
        self, adapters: Mapping[str, tuple[AdapterDescription, ...]] | None = None
    ) -> None:
        """`adapters` are those that each model begins with."""
        self._adapters = dict(adapters or {})
        self._told: dict[str, GroupIdentity] = {}
        self._leaving: frozenset[str] = frozenset()
        self._links: dict[str, EngineLink] = {}
        self._connecting: dict[str, asyncio.Task[EngineLink]] = {}

    @property
    def groups(self) -> dict[str, GroupIdentity]:
        """Groups by id: those it was told of, and those whose engine still holds a connection.

        A restarted central scheduler learns of the groups only as their engines find it again.
        """
        linked = {group_id: link.identity for group_id, link in self._links.items() if link.open}
        return self._told | linked

    def take(self, identities: Collection[GroupIdentity], leaving: Collection[str] = ()) -> None:
        """Believe a new list of all groups, and which of them take no more requests."""
        self._leaving = frozenset(leaving)
        self._told = {identity.group_id: identity for identity in identities}
        self._links = {
            group_id: link
            for group_id, link in self._links.items()
            if link.open or group_id in self._told
        }
        for group_id, link in self._links.items():
            link.identity = self._told.get(group_id, link.identity)

    def key_shape(self, model: str) -> tuple[int, str]:
        """What names of blocks depend on, of a group of that model: they are alike as a rule.

        Token slots in a block, and the version of the weights; 0 slots when no group is known.
        """
        groups = (group for group in self.groups.values() if group.model.name == model)
        newest = max(groups, key=lambda group: group.state.generation, default=None)
        return (0, "") if newest is None else (newest.block_size, newest.state.version)

    def serving(self, wanted: Collection[str]) -> set[str]:
        """Models that have a group which does not rest, and those `wanted` that have none.

        A group that is leaving is none.
        """
        groups = [group for name, group in self.groups.items() if name not in self._leaving]
        awake = {group.model.name for group in groups if not group.resting}
        return awake | (set(wanted) - {group.model.name for group in groups})

    def adapters(self, model: str) -> tuple[AdapterDescription, ...]:
        """Adapters of a model; while no group of it is up, those that there were."""
        states = [group.state for group in self.groups.values() if group.model.name == model]
        newest = max(states, key=lambda state: state.generation, default=None)
        if newest is not None:
            self._adapters[model] = newest.adapters
        return self._adapters.get(model, ())

    def least_loaded(self, model: str, tried: Collection[str]) -> str | None:
        """A group of that model that is not in `tried`; None when there is none.

        The one that runs the fewest requests of this ingress; one that hung up comes last.
        """

        def load(group_id: str) -> tuple[bool, int]:
            link = self._links.get(group_id)
            return (not link.open, link.num_streams) if link is not None else (False, 0)

        candidates = [
            group_id
            for group_id, identity in self.groups.items()
            if identity.model.name == model and group_id not in tried
        ]
        return min(candidates, key=load, default=None)

    async def link(self, group_id: str) -> EngineLink:
        """The connection to a group's engine, made if it is not there.

        One that cannot be reached holds up nobody who wants another.

        Raises:
            RequestRefused: the group has left or cannot be reached.
        """
        link = self._links.get(group_id)
        if link is not None and link.open:
            return link
        identity = self._told.get(group_id)
        if identity is None:
            raise RequestRefused(RefusalCode.UNAVAILABLE, _UNREACHABLE_MESSAGE)
        connecting = self._connecting.get(group_id)
        if connecting is None:
            connecting = asyncio.create_task(self._connect(identity), name=f"connect-{group_id}")
            self._connecting[group_id] = connecting
        # Shielded: others may wait for the same connection.
        return await asyncio.shield(connecting)

    async def close(self) -> None:
        """Hang up on every engine."""
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def _connect(self, identity: GroupIdentity) -> EngineLink:
        try:
            link = await EngineLink.connect(identity)
        except OSError as error:
            logger.warning("group %s cannot be reached: %r", identity.group_id, error)
            raise RequestRefused(RefusalCode.UNAVAILABLE, _UNREACHABLE_MESSAGE) from error
        finally:
            del self._connecting[identity.group_id]
        self._links[identity.group_id] = link
        return link
