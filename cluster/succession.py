"""Who takes the place of an engine's group: one formed anew after a loss, or one that is asked for.

A group is asked for so that the old one can rest, or come back with other weights. Knows neither
scheduler nor steps. Units: none.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from blockyard.cluster.group import Group, GroupLost

__all__ = ["Succession"]

logger = logging.getLogger(__name__)

MOST_REPAIRS = 2
"""How often a group is formed anew without finishing a step: what fails it may be a request."""

MakeGroup = Callable[[], Awaitable[Group]]


class Succession:
    """One engine's.

    Attributes:
        wanted: a successor is asked for: the engine is to come to rest between two steps.

    Args:
        repair: answers a group formed anew after a loss, or raises; None: there is none.
        note: called when something is asked for.
    """

    def __init__(self, repair: MakeGroup | None, note: Callable[[], None]) -> None:
        self._repair = repair
        self._note = note
        self._repairs = 0  # since the last finished step
        self._asked: tuple[MakeGroup, asyncio.Future[None]] | None = None
        self._failed = False
        self._over: GroupLost | None = None

    @property
    def wanted(self) -> bool:
        """Whether a successor is asked for, or being made."""
        return self._asked is not None

    def step_ended(self) -> None:
        """The group has shown that it works."""
        self._repairs = 0

    async def after_loss(self, reason: str) -> Group | None:
        """A group formed anew, if there is to be one."""
        if self._failed or self._repair is None or self._repairs == MOST_REPAIRS:
            return None
        self._repairs += 1
        logger.warning("the group is lost and formed anew: %s", reason)
        try:
            return await self._repair()
        except Exception:
            logger.exception("the group could not be formed anew")
            return None

    async def ask(self, make: MakeGroup) -> None:
        """Have `make` called when no step is under way; returns when the engine runs its answer.

        `make` closes the old group and answers one with empty pools of the same size. However long
        that takes, requests are taken in and wait; what had begun is computed again from its
        tokens, and goes on.

        Raises:
            RuntimeError: one is asked for already.
            GroupLost: `make` has failed, and with it the engine; or the engine was lost before.
        """
        if self._over is not None:
            raise self._over
        if self._asked is not None:
            raise RuntimeError("this engine changes its group already; wait for that to end")
        done = asyncio.get_running_loop().create_future()
        self._asked = make, done
        self._note()
        await done

    async def carry_out(self) -> Group:
        """Make what is asked for. `taken` follows.

        Raises:
            GroupLost: it could not be made.
        """
        assert self._asked is not None, "nothing is asked for"
        make, _ = self._asked
        try:
            return await make()
        except Exception as error:
            lost = GroupLost(f"no group could take the old one's place: {error!r}")
            self._failed = True
            self._end(lost)
            raise lost from error

    def end(self, reason: str) -> None:
        """The engine is lost: nobody waits any longer for what it was asked, or asks it again."""
        self._over = GroupLost(reason)
        if self._asked is not None:
            self._end(self._over)

    def taken(self) -> None:
        """The engine runs what was asked for."""
        self._end(None)

    def _end(self, failure: GroupLost | None) -> None:
        assert self._asked is not None, "nothing is asked for"
        _, done = self._asked
        self._asked = None
        if done.done():  # who asked has gone
            return
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)
