"""The books from the engine to the client: bytes per rank, the shadow, the audit, the watch."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from blockyard.cluster.books.group_books import GroupBooks, facts_of
from blockyard.cluster.books.ledger_message import ledger_message
from blockyard.cluster.client import GenerationClient, ServerError
from blockyard.cluster.commands.ledger import ledger_object
from blockyard.cluster.grpc_front import GrpcFront
from blockyard.protos import cluster_pb2
from blockyard.scheduler.ledger import BlockCounts, PreemptionCounts
from blockyard.scheduler.request import RequestSpec
from blockyard.workers.config import AllocatorMemory, WorkerProfile

Spec = Callable[..., RequestSpec]
Collected = Callable[..., Awaitable[Any]]

PROFILES = [
    WorkerProfile(64, 4096, 1_000_000, 5_000, "cuda", "bfloat16"),
    WorkerProfile(64, 2048, 700_000, 4_000, "cuda", "bfloat16"),
]
MEMORY = (AllocatorMemory(900, 600, 300, 60), AllocatorMemory(500, 400, 100, 100))


@pytest.fixture
async def client(stack: Any) -> AsyncIterator[GenerationClient]:
    front = GrpcFront(stack.dispatcher, {})
    port = await front.start("127.0.0.1:0")
    async with GenerationClient(f"127.0.0.1:{port}", 20.0) as client:
        yield client
    await front.stop(None)


async def hold(stack: Any, spec: Spec, count: int, prompt: int = 9) -> list[Any]:
    """Requests that have their blocks and a step in flight that does not end."""
    worker = stack.groups[0].workers[0]
    worker.gate.clear()
    streams = [
        await stack.dispatcher.submit("witness", spec(f"h{number}", (number + 1,) * prompt, 50))
        for number in range(count)
    ]
    await asyncio.to_thread(worker.entered.wait, 10)
    return streams


async def test_a_group_without_profiles_has_counts_and_no_bytes(
    stack: Any, client: GenerationClient
) -> None:
    await stack.add_group()
    (group,) = (await client.ledger()).groups
    assert group.blocks.total == 64
    assert not group.ranks
    assert not group.HasField("sum")
    assert not group.HasField("audit")
    assert [server.policy for server in group.contiguous] == ["max_seq_len", "pow2", "exact"]
    assert group.summary == (
        "contiguous(max_seq_len): 0 running, 0 % of memory holds tokens; blockyard: 0 running, 0 %"
    )


async def test_bytes_are_each_ranks_own_and_add_up(
    stack: Any, spec: Spec, client: GenerationClient
) -> None:
    await stack.add_group(facts=facts_of(PROFILES))
    await hold(stack, spec, 1)
    (group,) = (await client.ledger()).groups
    # A prompt of nine tokens in blocks of four, all of it in the step in flight.
    assert (group.blocks.active, group.slots.promised, group.slots.empty_tail) == (3, 9, 3)
    assert [rank.rank for rank in group.ranks] == [0, 1]
    assert not group.sum.HasField("rank")
    for rank, profile in zip(group.ranks, PROFILES, strict=True):
        assert rank.blocks.active == 3 * profile.block_bytes
        assert rank.slots.promised == 9 * profile.block_bytes // 4
        assert (rank.weight_bytes, rank.activation_bytes) == (
            profile.weight_bytes,
            profile.activation_bytes,
        )
        states = rank.blocks.free + rank.blocks.cached + rank.blocks.active + rank.blocks.fenced
        assert states == rank.blocks.total == 64 * profile.block_bytes
        assert not rank.HasField("allocator")
    for part, fields in (("blocks", ("total", "active")), ("slots", ("promised", "empty_tail"))):
        for field in fields:
            total = sum(getattr(getattr(rank, part), field) for rank in group.ranks)
            assert getattr(getattr(group.sum, part), field) == total
    assert group.sum.weight_bytes == 1_700_000
    assert (group.wastes.promised_percent, group.wastes.empty_tail_percent) == (75.0, 25.0)
    stack.groups[0].workers[0].gate.set()


async def test_allocators_are_asked_for_and_may_not_answer(
    stack: Any, client: GenerationClient
) -> None:
    answers: list[Any] = [MEMORY, ConnectionError("gone"), (MEMORY[0], None)]

    async def ask() -> tuple[AllocatorMemory | None, ...]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        told: tuple[AllocatorMemory | None, ...] = answer
        return told

    await stack.add_group(facts=facts_of(PROFILES), ask_memory=ask)
    (group,) = (await client.ledger()).groups
    first = group.ranks[0].allocator
    assert (first.slack, first.external_fragmentation_percent) == (300, 80.0)
    assert group.ranks[1].allocator.external_fragmentation_percent == 0.0
    assert (group.sum.allocator.slack, group.sum.allocator.largest_free) == (400, 160)
    (group,) = (await client.ledger()).groups
    assert not any(rank.HasField("allocator") for rank in (*group.ranks, group.sum))
    (group,) = (await client.ledger()).groups
    assert group.ranks[0].HasField("allocator")
    # One rank's slack would pass for the group's.
    assert not group.ranks[1].HasField("allocator") and not group.sum.HasField("allocator")


async def test_the_shadow_follows_what_the_engine_does(
    stack: Any, spec: Spec, collected: Collected, client: GenerationClient
) -> None:
    # 64 blocks of 4: memory for one context of 256 tokens.
    await stack.add_group()
    streams = await hold(stack, spec, 4)
    (group,) = (await client.ledger()).groups
    reserving, moving, _ = group.contiguous
    assert (reserving.running, reserving.queued, reserving.filled) == (1, 3, 9)
    assert (moving.running, moving.filled, moving.capacity) == (4, 36, 256)
    assert reserving.reservation_percent == pytest.approx(100 * 247 / 256, abs=0.01)
    moment = reserving.first_out_of_memory
    assert (moment.needed, moment.free, moment.reserved_idle, moment.running) == (256, 0, 247, 1)
    assert moment.message.startswith("out of memory with 0 slots free: 256 slots needed in one")
    await streams[1].abort()
    await streams[0].abort()
    stack.groups[0].workers[0].gate.set()
    for stream in streams[2:]:
        await collected(stream)
    await stack.until(stack.idle)
    (group,) = (await client.ledger()).groups
    assert group.requests.running == 0
    for server in group.contiguous:
        assert (server.running, server.queued, server.free) == (0, 0, 256)
        assert server.behind_seconds == 0.0
    assert group.contiguous[0].refused == 1  # it left before there was room for it
    # The oracle has seen it all by now: two that were stopped early, two to the end.
    assert (group.contiguous[2].peak_running, group.contiguous[2].refused) == (4, 0)


async def test_a_shadow_that_fails_leaves_the_requests_alone(
    stack: Any, spec: Spec, collected: Collected, caplog: pytest.LogCaptureFixture
) -> None:
    group = await stack.add_group()

    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    group.server.engine.shadow._shadow.advance = fail
    tokens, _ = await collected(await stack.dispatcher.submit("witness", spec("a", (1, 2), 5)))
    assert len(tokens) == 5
    assert "the contiguous shadow failed" in caplog.text
    (report,) = await stack.dispatcher.reports()
    assert report.books.shadow == ()
    assert ledger_message(report).summary == ""


async def test_the_audit_is_made_on_request_and_names_what_is_wrong(
    stack: Any, spec: Spec, client: GenerationClient
) -> None:
    group = await stack.add_group()
    (books,) = (await client.ledger(audit=True)).groups
    assert books.HasField("audit") and books.audit == ""
    await hold(stack, spec, 1)
    engine = group.server.engine
    broken = next(iter(engine.scheduler.roster))
    broken.num_promised += 1
    (books,) = (await client.ledger()).groups
    assert not books.HasField("audit")
    (books,) = (await client.ledger(audit=True)).groups
    assert "h0" in books.audit
    broken.num_promised -= 1
    group.workers[0].gate.set()


class TestWatch:
    async def test_it_tells_of_changes_and_not_of_none(
        self, stack: Any, spec: Spec, collected: Collected, client: GenerationClient
    ) -> None:
        await stack.add_group()
        looks = count_looks(stack)
        async with aclosing(client.watch_ledger(0.1, 3600)) as books:
            assert (await anext(books)).groups[0].step == 0
            following = asyncio.ensure_future(anext(books))
            await stack.until(lambda: looks[0] >= 4)
            assert not following.done()  # looked at, and the same
            await collected(await stack.dispatcher.submit("witness", spec("a", (1, 2), 5)))
            while (await following).groups[0].step < 5:
                following = asyncio.ensure_future(anext(books))

    async def test_unchanged_books_come_at_the_heartbeat(
        self, stack: Any, client: GenerationClient
    ) -> None:
        await stack.add_group()
        async with aclosing(client.watch_ledger(0.5, 1.0)) as books:
            first, second = await anext(books), await anext(books)
        assert first == second

    async def test_nobody_looks_once_the_watcher_has_left(
        self, stack: Any, client: GenerationClient
    ) -> None:
        await stack.add_group()
        looks = count_looks(stack)
        async with aclosing(client.watch_ledger(0.1)) as books:
            await anext(books)
        await asyncio.sleep(0)
        await client.ledger()  # comes behind the cancellation on the same connection
        before = looks[0]
        await asyncio.sleep(0.35)
        assert looks[0] == before

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("interval_seconds", 0.0),
            ("interval_seconds", float("nan")),
            ("interval_seconds", 1e9),
            ("heartbeat_seconds", 0.5),
            ("heartbeat_seconds", -1.0),
        ],
    )
    async def test_what_cannot_be_asked_for_is_told(
        self, client: GenerationClient, field: str, value: float
    ) -> None:
        with pytest.raises(ServerError, match="must be from") as refused:
            await anext(client.watch_ledger(**{field: value}))
        assert (refused.value.code, refused.value.field) == ("INVALID_ARGUMENT", field)

    async def test_a_server_that_stops_ends_the_watch_at_once(self, stack: Any) -> None:
        await stack.add_group()
        front = GrpcFront(stack.dispatcher, {})
        port = await front.start("127.0.0.1:0")
        async with GenerationClient(f"127.0.0.1:{port}") as client:
            books = client.watch_ledger(3600, 3600)
            await anext(books)
            async with asyncio.timeout(10):
                await front.stop(60)
            with pytest.raises(StopAsyncIteration):
                await anext(books)


def count_looks(stack: Any) -> list[int]:
    looks = [0]
    reports = stack.dispatcher.reports

    async def counted(*arguments: bool) -> Any:
        looks[0] += 1
        return await reports(*arguments)

    stack.dispatcher.reports = counted
    return looks


def test_the_host_pool_and_the_kinds_of_preemption_are_told(report: Any) -> None:
    ledger = replace(
        report.ledger,
        host_blocks=BlockCounts(total=6, free=2, cached=0, active=3, fenced=1),
        preempted=PreemptionCounts(2, 1, 0, 5, 4, 0.5, 0.25, 1.5, 1.25),
    )
    books = GroupBooks(ledger, facts=facts_of(PROFILES))
    group = ledger_message(replace(report, books=books))
    host = group.host_blocks
    assert (host.total, host.free, host.active, host.fenced) == (6, 2, 3, 1)
    assert [rank.host_blocks.active for rank in group.ranks] == [3 * 4096, 3 * 2048]
    assert group.sum.host_blocks.total == 6 * 6144
    for field in group.preempted.DESCRIPTOR.fields:
        assert getattr(group.preempted, field.name) == getattr(ledger.preempted, field.name)


def test_what_is_not_known_is_null_in_json(report: Any) -> None:
    response = cluster_pb2.LedgerResponse(groups=[ledger_message(report)])
    parsed = json.loads(json.dumps(ledger_object(response)))
    (group,) = parsed["groups"]
    assert (group["sum"], group["audit"]) == (None, None)
    assert (group["ranks"], group["contiguous"], group["summary"]) == ([], [], "")
