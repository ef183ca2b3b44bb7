"""A connection that is made again whenever it ends: how engines and ingresses hold on to the
central scheduler.

Knows nothing of what is said over it. Units: seconds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from blockyard.cluster.wire import Codec, Connection, Endpoint, WireError, connect

__all__ = ["stay_linked"]

logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 5.0

Received = TypeVar("Received")


async def stay_linked(
    locate: Callable[[], Awaitable[Endpoint]],
    codec: Codec[Received],
    use: Callable[[Connection[Received]], Awaitable[None]],
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Connect, let `use` talk until the connection ends, connect again, while it is `wanted`.

    `locate` finds the peer anew at each try (it may have moved); whatever it raises, there will be
    another try.
    """
    retry = _FIRST_RETRY_SECONDS
    while wanted():
        try:
            connection = await connect(await locate(), codec)
        except Exception as error:
            logger.info("the central scheduler is not there (%r); trying again", error)
        else:
            retry = _FIRST_RETRY_SECONDS
            try:
                await use(connection)
            except WireError as error:
                logger.warning("the central scheduler spoke out of turn: %s", error)
            finally:
                await connection.close()
        await asyncio.sleep(retry)
        retry = min(retry * 2, _LAST_RETRY_SECONDS)
