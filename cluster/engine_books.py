"""An engine's books for whoever asks over a connection, with what costs more when it is asked for.

Walks every request and block for an audit; asks the ranks what their allocators hold, without
waiting long for one that says nothing. Knows no requests. Units: seconds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from blockyard.cluster.books.group_books import GroupBooks
from blockyard.cluster.books.yard_look import look_at_yard
from blockyard.cluster.engine import Engine
from blockyard.cluster.messages import AskLedger, AskYard, LedgerAnswer, YardAnswer
from blockyard.cluster.wire import Connection
from blockyard.scheduler.rank_facts import GroupFacts
from blockyard.workers.config import AllocatorMemory

__all__ = ["AskMemory", "EngineBooks"]

logger = logging.getLogger(__name__)

AskMemory = Callable[[], Awaitable[tuple[AllocatorMemory | None, ...]]]
"""Asks every rank of a group for its allocator."""

_MEMORY_SECONDS = 2.0
"""Ranks that say nothing for so long are left out of the answer."""


class EngineBooks:
    """The books of one engine.

    Args:
        engine: whose.
        prove: proves all invariants, raising AssertionError.
        facts: what each rank has in memory.
        ask_memory: None when the ranks cannot be asked.
    """

    def __init__(
        self,
        engine: Engine,
        prove: Callable[[], None],
        facts: GroupFacts | None,
        ask_memory: AskMemory | None,
    ) -> None:
        self._engine = engine
        self._prove = prove
        self._facts = facts
        self._ask_memory = ask_memory
        self._answering: set[asyncio.Task[None]] = set()

    def books(self, audit: bool = False) -> GroupBooks:
        """All that is known of the group; with `audit`, after walking every request and block."""
        return GroupBooks(
            self._engine.ledger(),
            self._engine.shadow.reports(),
            self._facts,
            audit=self._audit() if audit else None,
            steps=self._engine.step_meter.report(),
        )

    def answer(self, connection: Connection[Any], question: AskLedger) -> None:
        """Tell who asks, at once or as soon as the ranks have said what they hold."""
        if not question.memory or self._ask_memory is None:
            connection.post(LedgerAnswer(question.ticket, self.books(question.audit)))
            return
        answer = self._answer_with_memory(connection, question, self._ask_memory)
        self._begin(answer, "books-with-memory")

    def draw(self, connection: Connection[Any], question: AskYard) -> None:
        """Send who asks a picture of the pool, drawn between steps."""
        self._begin(self._draw(connection, question), "yard-look")

    def close(self) -> None:
        """Answer nobody any more."""
        for task in self._answering:
            task.cancel()

    def _begin(self, answer: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(answer, name=name)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _draw(self, connection: Connection[Any], question: AskYard) -> None:
        try:
            yard = await look_at_yard(self._engine.scheduler, question.max_cells)
        except Exception:
            # Who asks learns it from the silence; who serves must not learn it at all.
            logger.exception("the yard could not be drawn")
            return
        connection.post(YardAnswer(question.ticket, yard))

    async def _answer_with_memory(
        self, connection: Connection[Any], question: AskLedger, ask_memory: AskMemory
    ) -> None:
        try:
            async with asyncio.timeout(_MEMORY_SECONDS):
                allocators = await ask_memory()
        except Exception as error:
            logger.warning("the ranks do not say what their allocators hold: %r", error)
            allocators = ()
        books = replace(self.books(question.audit), allocators=allocators)
        connection.post(LedgerAnswer(question.ticket, books))

    def _audit(self) -> str:
        try:
            self._prove()
        except AssertionError as error:
            logger.error("the books do not add up: %s", error)
            return str(error) or "the books do not add up"
        return ""
