"""The engine's doors: ingresses that submit and read, and the link to the central scheduler.

Owns which connection each live request belongs to. A connection that ends frees its requests'
blocks at once. Knows no Ray and no gRPC.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from blockyard.cluster.engine import Engine, Group
from blockyard.cluster.messages import (
    Abort,
    AskLedger,
    EngineToIngress,
    IngressToEngine,
    LedgerAnswer,
    Refused,
    Submit,
    Submitted,
    Updates,
)
from blockyard.cluster.outbox import Outbox
from blockyard.cluster.wire import Codec, Connection, Endpoint, Listener, WireError, listen
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.request import RefusalCode, RequestRefused, RequestUpdate
from blockyard.scheduler.scheduler import Scheduler

__all__ = ["EngineServer"]

logger = logging.getLogger(__name__)

_LOST_MESSAGE = "the workers that ran this request were lost; send it again"


@dataclass(slots=True)
class _Reader:
    """One ingress's connection."""

    connection: Connection[IngressToEngine]
    outbox: Outbox = field(default_factory=Outbox)
    request_ids: set[str] = field(default_factory=set)


class EngineServer:
    """Serves one engine to many ingresses. Make it with `EngineServer.start`."""

    def __init__(self, scheduler: Scheduler, group: Group, on_change: Callable[[], None]) -> None:
        self._owners: dict[str, _Reader] = {}
        self._on_change = on_change
        self._draining = False
        self.engine = Engine(scheduler, group, self._deliver, self._lose)
        self._loop_task: asyncio.Task[None] | None = None
        self._listener: Listener | None = None

    @classmethod
    async def start(
        cls,
        scheduler: Scheduler,
        group: Group,
        host: str,
        on_change: Callable[[], None] = lambda: None,
    ) -> "EngineServer":
        """Listen on `host` and start to step. `on_change` is called when the books have changed."""
        server = cls(scheduler, group, on_change)
        codec: Codec[IngressToEngine] = Codec(IngressToEngine)
        server._listener = await listen(codec, server._serve_ingress, host)
        server._loop_task = asyncio.create_task(server._run(), name="engine-loop")
        return server

    @property
    def endpoint(self) -> Endpoint:
        """Where ingresses connect."""
        assert self._listener is not None
        return self._listener.endpoint

    @property
    def draining(self) -> bool:
        """Whether newcomers are refused."""
        return self._draining

    @property
    def lost(self) -> str | None:
        """Why this engine cannot step any more, or None."""
        if self.engine.lost is not None:
            return self.engine.lost
        if self._loop_task is not None and self._loop_task.done():
            return "the step loop has ended"
        return None

    def ledger(self) -> GroupLedger:
        """The books as they stand."""
        return self.engine.ledger()

    def start_drain(self) -> None:
        """Refuse newcomers; what was admitted goes on to its end."""
        self._draining = True
        self.engine.start_drain()
        self._on_change()

    async def close(self) -> None:
        """Stop listening and stepping, whatever is still live."""
        if self._listener is not None:
            await self._listener.close()
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)

    def check(self) -> None:
        """Prove the engine's invariants, and that each owned request is owned once."""
        self.engine.check()
        for request_id, reader in self._owners.items():
            if request_id not in reader.request_ids:
                raise AssertionError(f"request {request_id} is missing in its reader's list")

    async def _run(self) -> None:
        try:
            await self.engine.run()
        except Exception as error:
            # A broken invariant: the books can no longer be trusted, so nothing more is stepped.
            logger.exception("the step loop failed")
            self._lose(f"the step loop failed: {error!r}")
            raise

    async def _serve_ingress(self, connection: Connection[IngressToEngine]) -> None:
        reader = _Reader(connection)
        sender = asyncio.create_task(self._send(reader), name="engine-sender")
        try:
            while (message := await connection.receive()) is not None:
                match message:
                    case Submit(spec):
                        self._submit(reader, spec.request_id, message)
                    case Abort(request_id):
                        self._abort(reader, request_id)
                    case AskLedger(ticket):
                        connection.post(LedgerAnswer(ticket, self.engine.ledger()))
        except WireError as error:
            logger.warning("an ingress spoke out of turn: %s", error)
        finally:
            sender.cancel()
            for request_id in list(reader.request_ids):
                self._abort(reader, request_id)

    def _submit(self, reader: _Reader, request_id: str, message: Submit) -> None:
        refusal: Refused | None = None
        if self.lost is not None:
            refusal = Refused(request_id, RefusalCode.UNAVAILABLE, _LOST_MESSAGE)
        else:
            try:
                self.engine.submit(message.spec)
            except RequestRefused as error:
                refusal = Refused(request_id, error.code, error.message, error.field)
        if refusal is not None:
            reader.connection.post(refusal)
            return
        self._owners[request_id] = reader
        reader.request_ids.add(request_id)
        reader.connection.post(Submitted(request_id))
        self._on_change()

    def _abort(self, reader: _Reader, request_id: str) -> None:
        if self._owners.get(request_id) is not reader:
            return  # it ended already, or was never this ingress's
        self.engine.abort(request_id)
        self._forget(request_id)
        reader.outbox.discard(request_id)
        self._on_change()

    def _forget(self, request_id: str) -> None:
        reader = self._owners.pop(request_id)
        reader.request_ids.discard(request_id)

    def _deliver(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            reader = self._owners.get(update.request_id)
            if reader is None:
                continue
            reader.outbox.put(update)
            if update.finish_reason is not None:
                self._forget(update.request_id)
        self._on_change()

    def _lose(self, reason: str) -> None:
        for request_id, reader in list(self._owners.items()):
            reader.outbox.put_refusal(Refused(request_id, RefusalCode.UNAVAILABLE, _LOST_MESSAGE))
            self._forget(request_id)
        self._on_change()

    async def _send(self, reader: _Reader) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while True:
                updates, refusals = await reader.outbox.take()
                if updates:
                    message: EngineToIngress = Updates(updates)
                    reader.connection.post(message)
                for refusal in refusals:
                    reader.connection.post(refusal)
                await reader.connection.drain()
