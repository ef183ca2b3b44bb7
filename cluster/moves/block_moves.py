"""One engine's part in moves: gives the blocks of requests that leave, brings those that come.

A request that leaves is let go at once; its blocks stay until the other group has read them, or for
`MOST_SECONDS`. One that comes waits for its blocks as long as they are sooner there than computed
again, which is asked anew after each portion; what has come by then counts, the rest is computed.
All beside the steps. Knows no requests' clients. Units: blocks, bytes, seconds.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from blockyard.cluster.engine import Engine
from blockyard.cluster.logs import fields
from blockyard.cluster.moves.block_carrier import BlockCarrier, CarrierGone, Portion
from blockyard.cluster.moves.consignment import Consignment
from blockyard.scheduler.ledger import MoveCounts
from blockyard.scheduler.move_cost import LinkMeter, is_worth_bringing
from blockyard.scheduler.parcels import Expected, Parcel, consign, expect, take_delivery
from blockyard.scheduler.scheduler import Scheduler

__all__ = ["LEAST_SECONDS", "MOST_SECONDS", "BlockMoves"]

logger = logging.getLogger(__name__)

MOST_SECONDS = 15.0
"""A parcel that nobody has read by then is given up."""
LEAST_SECONDS = 0.25
LONGEST_SECONDS = 5.0
"""A request waits for its blocks no longer than computing them takes, within these two."""
FIRST_BYTES = 1 << 20
LARGEST_BYTES = 32 << 20
"""Of a portion on each rank: the first is small, since it may show that the wire is slow."""
MOST_COMING = 2
"""Requests whose blocks are fetched at once; others that come compute theirs."""
MOST_GOING = 16
"""Parcels that wait to be read."""


class BlockMoves:
    """Made with its engine. Until `carrier` tells of one, nothing moves.

    Args:
        engine: the engine.
        clock: seconds.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self.carrier: Callable[[], BlockCarrier | None] = lambda: None
        """Has the ranks move blocks; the one of now."""
        self._engine = engine
        self._clock = clock
        self._going: set[asyncio.Task[None]] = set()
        self._coming: set[asyncio.Task[None]] = set()
        self._num_coming = 0
        self._news = asyncio.Event()
        self._out = LinkMeter()
        self._links: dict[str, LinkMeter] = {}  # by the machine that blocks come from

    def note_change(self) -> None:
        """The books have changed: a step may have been acknowledged."""
        self._news.set()

    def send_off(self, request_id: str) -> Consignment | None:
        """Keep what a request has computed for the group that goes on with it.

        Whoever calls lets go of the request at once. None: it is to be computed again.
        """
        carrier, scheduler = self.carrier(), self._engine.scheduler
        if carrier is None or not carrier.open or len(self._going) >= MOST_GOING:
            return None
        key = secrets.token_bytes(16)
        parcel = consign(scheduler, request_id, key, self._out.model(self._clock()))
        if parcel is None:
            return None
        self._start(self._going, self._give(carrier, scheduler, parcel), "blocks-go")
        return Consignment(parcel, carrier.doors)

    def bring(self, request_id: str, consignment: Consignment | None) -> None:
        """Have a request that has just been taken in wait for its blocks, if that is cheaper."""
        engine, carrier = self._engine, self.carrier()
        scheduler = engine.scheduler
        host = scheduler.batch.parking.host
        expected = None
        if consignment is not None and carrier is not None and carrier.open:
            if self._may_come(consignment, carrier):
                link = self._link(consignment).model(self._clock())
                expected = expect(scheduler, request_id, consignment.parcel, link)
            if expected is None:
                self._start(self._coming, self._decline(carrier, consignment), "blocks-stay")
        if consignment is None or carrier is None or expected is None:
            host.note_moves(MoveCounts(recomputed=1))
            return
        self._num_coming += 1
        host.note_moves(MoveCounts(estimated_seconds=expected.estimated_seconds))
        fetching = self._bring(carrier, scheduler, consignment, expected)
        self._start(self._coming, fetching, "blocks-come")

    async def settled(self, seconds: float) -> bool:
        """Wait until all that goes has gone, at most so long; whether it has."""
        if self._going:
            await asyncio.wait(self._going, timeout=seconds)
        return not self._going

    async def close(self) -> None:
        """End whatever moves."""
        tasks = (*self._going, *self._coming)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what goes ----------------------------------------------------------------------------

    async def _give(self, carrier: BlockCarrier, scheduler: Scheduler, parcel: Parcel) -> None:
        host = scheduler.batch.parking.host
        deadline, key = self._clock() + MOST_SECONDS, parcel.key
        try:
            num_bytes = await self._give_until(carrier, scheduler, key, deadline)
        except CarrierGone as error:
            # Somebody may still read them: they stay on the books until the group is formed anew.
            logger.warning("blocks that were to go stay: %s", error)
            return
        if self._engine.scheduler is scheduler:
            host.discard(key)
            blocks_out = parcel.num_blocks if num_bytes else 0
            host.note_moves(MoveCounts(bytes_out=num_bytes, blocks_out=blocks_out))
            self._engine.note_change()

    async def _give_until(
        self, carrier: BlockCarrier, scheduler: Scheduler, key: bytes, deadline: float
    ) -> int:
        """Offer a parcel once it is written; returns when no rank reads it: the bytes read."""
        host = scheduler.batch.parking.host
        while (host_ids := host.written(key)) is None:
            self._news.clear()
            if self._engine.scheduler is not scheduler or self._clock() > deadline:
                return 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline - self._clock()):
                    await self._news.wait()
        giving = asyncio.ensure_future(carrier.give(key, host_ids))
        try:
            await asyncio.wait((giving,), timeout=max(0.0, deadline - self._clock()))
            if not giving.done():
                carrier.withdraw(key)
            return await giving
        finally:
            giving.cancel()

    # --- what comes ---------------------------------------------------------------------------

    def _may_come(self, consignment: Consignment, carrier: BlockCarrier) -> bool:
        return (
            len(consignment.doors) == len(carrier.doors)
            and self._num_coming < MOST_COMING
            and not self._engine.succession.wanted
        )

    async def _decline(self, carrier: BlockCarrier, consignment: Consignment) -> None:
        """Tell those who have the blocks that nobody wants them."""
        if len(consignment.doors) != len(carrier.doors):
            return  # they are given up after a while
        ticket, key = carrier.new_ticket(), consignment.parcel.key
        with contextlib.suppress(CarrierGone):
            await carrier.fetch(ticket, consignment.doors, key, 0, (), LONGEST_SECONDS)
            carrier.leave(ticket)

    async def _bring(
        self,
        carrier: BlockCarrier,
        scheduler: Scheduler,
        consignment: Consignment,
        expected: Expected,
    ) -> None:
        began = self._clock()
        try:
            blocks, num_bytes, error = await self._fetch(carrier, scheduler, consignment, expected)
        except CarrierGone as gone:
            # Somebody may still write to them: they stay until the group is formed anew, and the
            # request with them; then it goes on from its tokens.
            logger.warning("blocks that were to come do not: %s", gone)
            return
        finally:
            self._num_coming -= 1
        if self._engine.scheduler is not scheduler:
            return  # it is formed anew already
        host, seconds = scheduler.batch.parking.host, self._clock() - began
        tokens = take_delivery(scheduler, expected, blocks)
        host.note_moves(
            MoveCounts(
                brought=1 if tokens else 0,
                recomputed=0 if tokens else 1,
                cut_short=1 if blocks < len(expected.host_ids) else 0,
                blocks_in=blocks if tokens else 0,
                tokens_in=tokens,
                bytes_in=num_bytes,
                seconds=seconds,
            )
        )
        rate = self._link(consignment).model(self._clock()).bytes_per_second
        host.wire_bytes_per_second = rate or host.wire_bytes_per_second
        self._engine.note_change()
        logger.info(
            "%d of %d blocks, %.1f MiB, came from another group in %.3f s%s",
            blocks,
            len(expected.host_ids),
            num_bytes / 2**20,
            seconds,
            f"; the rest is computed again: {error}" if error else "",
            extra=fields(request_id=expected.member.request_id),
        )

    async def _fetch(
        self,
        carrier: BlockCarrier,
        scheduler: Scheduler,
        consignment: Consignment,
        expected: Expected,
    ) -> tuple[int, int, str]:
        """Blocks and bytes that are there, and why no more; no rank writes any more."""
        ticket, wanted = carrier.new_ticket(), len(expected.host_ids)
        block_bytes = max(1, scheduler.batch.parking.rates.model().block_bytes)
        deadline = self._clock() + _patience(scheduler, expected)
        done, num_bytes, portion_bytes, error = 0, 0, FIRST_BYTES, ""
        while done < wanted and not error:
            count = min(max(1, portion_bytes // block_bytes), wanted - done)
            portion = await carrier.fetch(
                ticket,
                consignment.doors,
                expected.parcel.key,
                expected.first + done,
                expected.host_ids[done : done + count],
                max(0.0, deadline - self._clock()),
            )
            self._observe(consignment, portion, first=not done)
            done, num_bytes = done + portion.blocks, num_bytes + portion.num_bytes
            portion_bytes, error = LARGEST_BYTES, portion.error
            if done < wanted and not error:
                error = self._why_not(scheduler, consignment, expected, done)
        carrier.leave(ticket)
        return done, num_bytes, error

    def _why_not(
        self, scheduler: Scheduler, consignment: Consignment, expected: Expected, done: int
    ) -> str:
        """Why no more is fetched; empty while it is to go on."""
        if expected.member.finish_reason is not None:
            return "the request has ended"
        left = len(expected.host_ids) - done
        tokens = expected.tokens_in(len(expected.host_ids)) - expected.tokens_in(done)
        rates = scheduler.batch.parking.rates.model()
        link = self._link(consignment).model(self._clock())
        return "" if is_worth_bringing(rates, link, left, tokens) else "that is cheaper"

    def _observe(self, consignment: Consignment, portion: Portion, first: bool) -> None:
        meter = self._link(consignment)
        meter.observe(portion.rank_bytes, portion.seconds, self._clock())
        self._out.observe(portion.rank_bytes, portion.seconds, self._clock())
        if first and not portion.error:
            meter.observe_delay(portion.waited)
            self._out.observe_delay(portion.waited)

    def _link(self, consignment: Consignment) -> LinkMeter:
        return self._links.setdefault(consignment.doors[0].host, LinkMeter())

    def _start(
        self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None], name: str
    ) -> None:
        task = asyncio.create_task(work, name=name)
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def _patience(scheduler: Scheduler, expected: Expected) -> float:
    """How long a request waits for its blocks at the most."""
    tokens = expected.tokens_in(len(expected.host_ids))
    recompute = scheduler.batch.parking.rates.model().recompute_seconds(tokens)
    return min(LONGEST_SECONDS, max(LEAST_SECONDS, recompute))
