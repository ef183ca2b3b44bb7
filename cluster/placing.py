"""Finds a request a group that takes it: a new one, and one that was served before.

As the central scheduler says; while that is down, silent, or new and without groups, the group with
the fewest of this ingress's own requests. Where no group can be had it waits for one. Units:
seconds.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from blockyard.cluster.binder import CentralBinder
from blockyard.cluster.binding.bind_refusals import no_group, too_late
from blockyard.cluster.engine_stream import EngineStream
from blockyard.cluster.group_identity import GroupIdentity
from blockyard.cluster.group_links import GroupLinks
from blockyard.cluster.journal import Journal
from blockyard.cluster.messages import Bind
from blockyard.cluster.relief import RequestMoved
from blockyard.cluster.waiting_room import WaitingRoom
from blockyard.scheduler.block_keys import PromptKeys
from blockyard.scheduler.request import RefusalCode, RequestRefused, RequestSpec
from blockyard.scheduler.snapshot import RequestSnapshot

__all__ = ["Asked", "Placer"]

_SHUTTING_DOWN = "the server is shutting down; ask another one"


@dataclass(slots=True)
class Asked:
    """What a client wants of the groups, and since when; `name` is held while it lives.

    `waited` says that it was let wait until a group has room: it is not to be refused for load.
    """

    model: str
    spec: RequestSpec
    keys: PromptKeys | None
    name: str
    began_at: float
    waited: bool = False

    def left_seconds(self, now: float) -> float | None:
        """Until its deadline; None: it has none."""
        seconds = self.spec.deadline_seconds
        return None if seconds is None else seconds - (now - self.began_at)


class Placer:
    """One ingress's.

    Args:
        groups, binder, room: of that ingress.
        patience_seconds: that one which has waited for a group to have room waits for another,
            should its own be lost or the central scheduler go.

    Attributes:
        draining: the cluster shuts down: nobody waits for a group any more.
    """

    def __init__(
        self,
        groups: GroupLinks,
        binder: CentralBinder,
        room: WaitingRoom,
        patience_seconds: float = 0.0,
    ) -> None:
        self._patience_seconds = patience_seconds
        self._groups = groups
        self._binder = binder
        self._room = room
        self.draining = False

    async def find_place(
        self,
        asked: Asked,
        seconds: float,
        journal: Journal | None = None,
        lost: Collection[str] = (),
        moved: RequestMoved | None = None,
    ) -> tuple[str, EngineStream]:
        """Have a group take a request; while there is none that can, wait so long for one.

        Args:
            asked: the request.
            seconds: to wait.
            journal: of one that was served before; it goes on from there.
            lost: groups that are not to be asked at first.
            moved: names the group that is to be asked first, and the blocks that it may have.

        Raises:
            RequestRefused: none has taken it.
        """

        def snapshot() -> RequestSnapshot | None:
            return None if journal is None else journal.snapshot(time.monotonic())

        def wanted() -> bool:
            return not self.draining and (journal is None or bool(journal.choices))

        try:
            return await self._place(asked, snapshot(), lost, moved)
        except RequestRefused as refusal:
            if asked.waited:
                seconds = max(seconds, self._patience_seconds)
            left = asked.left_seconds(time.monotonic()) if journal is None else None
            try:
                # What was lost may be back by then: its ranks replaced, or the wire made again.
                return await self._room.retry(
                    asked.model,
                    seconds if left is None else min(seconds, left),
                    refusal,
                    lambda: self._place(asked, snapshot()),
                    wanted,
                )
            except RequestRefused as last:
                if left is not None and left < seconds and last.code is RefusalCode.UNAVAILABLE:
                    raise too_late() from last
                raise

    async def _place(
        self,
        asked: Asked,
        snapshot: RequestSnapshot | None = None,
        lost: Collection[str] = (),
        moved: RequestMoved | None = None,
    ) -> tuple[str, EngineStream]:
        """Have a group take a request, or go on with it from its snapshot; none of those `lost`."""
        model = asked.model
        group_id = (moved.taker if moved else "") or await self._bind(asked, snapshot)
        if group_id is None and self.draining:
            raise RequestRefused(RefusalCode.UNAVAILABLE, _SHUTTING_DOWN)
        tried = set(lost)
        refusal: RequestRefused | None = None
        while True:
            if group_id is None or group_id in tried:
                group_id = self._groups.least_loaded(model, tried)
            if group_id is None:
                raise refusal or no_group(model)
            tried.add(group_id)
            try:
                link = await self._groups.link(group_id)
                spec = _keyed(asked, link.identity)
                if snapshot is None:
                    # An engine counts from the moment at which it gets the request.
                    left = asked.left_seconds(time.monotonic())
                    if left is not None and left <= 0:
                        raise too_late()
                    return group_id, await link.submit(replace(spec, deadline_seconds=left))
                consignment = moved.consignment if moved else None
                return group_id, await link.resume(replace(snapshot, spec=spec), consignment)
            except RequestRefused as refused:
                refusal = refused
                if refused.code is RefusalCode.EXHAUSTED and asked.waited:
                    refusal = RequestRefused(RefusalCode.UNAVAILABLE, refused.message)
                # What has begun is not the client's mistake: another pool may be large enough.
                elif snapshot is None and refused.code is not RefusalCode.UNAVAILABLE:
                    raise

    async def _bind(self, asked: Asked, snapshot: RequestSnapshot | None) -> str | None:
        """What the central scheduler says, if anything."""
        spec, keys, now = asked.spec, asked.keys, time.monotonic()
        block_size, version = self._groups.key_shape(asked.model)
        served = snapshot is not None
        binding = await self._binder.bind(
            Bind(
                0,
                asked.model,
                len(spec.prompt_token_ids) if snapshot is None else snapshot.known_tokens,
                keys.of(block_size, version) if keys is not None and block_size else (),
                block_size,
                "" if served else asked.name,  # one that is moved holds its name already
                spec.traceparent,
                spec.request_id,
                spec.priority,
                spec.num_choices if snapshot is None else len(snapshot.numbers),
                spec.tenant,
                now - asked.began_at,
                None if served else asked.left_seconds(now),
                max(1, spec.sampling.min_tokens),
                served,
            )
        )
        asked.waited = asked.waited or binding.waited
        return binding.group_id


def _keyed(asked: Asked, group: GroupIdentity) -> RequestSpec:
    """A request with the names of its prompt's blocks as that group has them."""
    if asked.keys is None:
        return replace(asked.spec, block_keys=())
    version = group.state.version
    return replace(
        asked.spec,
        block_keys=asked.keys.of(group.block_size, version),
        extras=replace(asked.spec.extras, weight_version=version),
    )
