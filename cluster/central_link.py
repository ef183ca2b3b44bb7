"""An engine's standing link to the central scheduler: joins, pushes the books, hears of drains.

The books, and which blocks can be found here, are pushed when they have changed, at most once in
`PUSH_SECONDS`, so an idle engine says nothing. While the central scheduler is away the engine
serves on. An engine that is lost leaves at once, so that nobody is sent to it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from blockyard.cluster.engine_server import EngineServer
from blockyard.cluster.messages import Drain, GroupIdentity, Join, LedgerPush
from blockyard.cluster.preempter import MakeWay, PassOn
from blockyard.cluster.relief import Relieve, Relieved
from blockyard.cluster.standing_link import stay_linked
from blockyard.cluster.states.engine_state import EngineState
from blockyard.cluster.states.model_state import STARTED, Became, Become
from blockyard.cluster.wire import Codec, Connection, Endpoint
from blockyard.scheduler.request import RefusalCode
from blockyard.scheduler.under_way import under_way

__all__ = ["PUSH_SECONDS", "CentralLink"]

PUSH_SECONDS = 0.05

ToEngine = Drain | Relieve | PassOn | MakeWay | Become


class CentralLink:
    """Keeps one engine known to the central scheduler.

    `locate` finds the central scheduler's endpoint; `changed` is set when the books have changed.
    Without `state` the group is awake and stays as it is.
    """

    def __init__(
        self,
        server: EngineServer,
        identity: GroupIdentity,
        locate: Callable[[], Awaitable[Endpoint]],
        changed: asyncio.Event,
        state: EngineState | None = None,
    ) -> None:
        self._server = server
        self._identity = identity
        self._locate = locate
        self._changed = changed
        self._state = state
        self._connection: Connection[ToEngine] | None = None
        self._becoming: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Stay linked until cancelled, or until the engine is lost."""
        codec: Codec[ToEngine] = Codec(ToEngine)
        await stay_linked(self._locate, codec, self._use, lambda: self._server.lost is None)

    async def _use(self, connection: Connection[ToEngine]) -> None:
        server = self._server
        server.engine.take_prefix_events()  # what changed before now is in the keys of now
        keys = server.engine.prefix_keys()
        charged = under_way(server.engine.scheduler)
        connection.post(Join(self._now(), server.ledger(), server.draining, keys, charged))
        self._connection = connection
        pusher = asyncio.create_task(self._push(connection), name="ledger-push")
        try:
            while (message := await connection.receive()) is not None:
                match message:
                    case Drain():
                        server.start_drain()
                    case Relieve(taker, requests, tokens):
                        moved = server.yield_requests(taker, requests, tokens)
                        connection.post(Relieved(moved))
                    case PassOn(request_id, taker):
                        connection.post(Relieved(server.pass_on(request_id, taker)))
                    case MakeWay(beneficiary, ways):
                        server.make_way(beneficiary, ways)
                    case Become():
                        task = asyncio.create_task(self._become(message), name="become")
                        self._becoming.add(task)
                        task.add_done_callback(self._becoming.discard)
        finally:
            self._connection = None
            pusher.cancel()

    def _now(self) -> GroupIdentity:
        if self._state is None:
            return self._identity
        return replace(self._identity, state=self._state.state, resting=self._state.resting)

    async def _become(self, asked: Become) -> None:
        """Whoever asked may be gone by then; who is there instead is told all the same."""
        if self._state is None:
            refusal = (RefusalCode.INVALID, "this group stays awake, and as it is")
            told = Became(asked.ticket, STARTED, *refusal)
        else:
            told = await self._state.become(asked)
        if self._connection is not None:
            self._connection.post(told)

    async def _push(self, connection: Connection[ToEngine]) -> None:
        server = self._server
        with contextlib.suppress(OSError):  # whoever receives notices the end, too
            while True:
                await self._changed.wait()
                self._changed.clear()
                if server.lost is not None:
                    connection.abort()
                    return
                events = server.engine.take_prefix_events()
                stored = tuple(block.key for block in events.stored)
                books, standing = server.ledger(), server.standing()
                connection.post(
                    LedgerPush(books, server.draining, events.removed, stored, standing)
                )
                await connection.drain()
                await asyncio.sleep(PUSH_SECONDS)
