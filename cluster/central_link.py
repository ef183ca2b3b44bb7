"""An engine's standing link to the central scheduler: joins, pushes the books, hears of drains.

The books are pushed when they have changed, at most once in `PUSH_SECONDS`, so an idle engine says
nothing. When the central scheduler goes away the link is made again; meanwhile the engine serves.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from blockyard.cluster.engine_server import EngineServer
from blockyard.cluster.messages import Drain, GroupIdentity, Join, LedgerPush
from blockyard.cluster.wire import Codec, Connection, Endpoint, WireError, connect

__all__ = ["CentralLink"]

logger = logging.getLogger(__name__)

PUSH_SECONDS = 0.05
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 5.0


class CentralLink:
    """Keeps one engine known to the central scheduler.

    `locate` finds the central scheduler's endpoint, anew at each try (it may have moved).
    """

    def __init__(
        self,
        server: EngineServer,
        identity: GroupIdentity,
        locate: Callable[[], Awaitable[Endpoint]],
        changed: asyncio.Event,
    ) -> None:
        self._server = server
        self._identity = identity
        self._locate = locate
        self._changed = changed

    async def run(self) -> None:
        """Stay linked until cancelled."""
        retry = _FIRST_RETRY_SECONDS
        while True:
            try:
                codec: Codec[Drain] = Codec(Drain)
                connection = await connect(await self._locate(), codec)
            except (OSError, TimeoutError) as error:
                logger.info("the central scheduler is not there (%s); trying again", error)
            else:
                retry = _FIRST_RETRY_SECONDS
                await self._stay(connection)
            await asyncio.sleep(retry)
            retry = min(retry * 2, _LAST_RETRY_SECONDS)

    async def _stay(self, connection: Connection[Drain]) -> None:
        pusher = asyncio.create_task(self._push(connection), name="ledger-push")
        try:
            connection.post(Join(self._identity, self._server.ledger()))
            while await connection.receive() is not None:
                self._server.start_drain()
        except WireError as error:
            logger.warning("the central scheduler spoke out of turn: %s", error)
        finally:
            pusher.cancel()
            await connection.close()

    async def _push(self, connection: Connection[Drain]) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while True:
                await self._changed.wait()
                self._changed.clear()
                connection.post(LedgerPush(self._server.ledger(), self._server.draining))
                await connection.drain()
                await asyncio.sleep(PUSH_SECONDS)
