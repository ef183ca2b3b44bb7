"""An engine's link to the central scheduler, with a test in the central scheduler's place."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from blockyard.cluster import central_link, standing_link
from blockyard.cluster.central_link import CentralLink
from blockyard.cluster.engine_server import EngineServer
from blockyard.cluster.messages import Drain, GroupIdentity, Join, LedgerPush, ToCentral
from blockyard.cluster.wire import Codec, Connection, Endpoint, Listener, listen
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.under_way import UnderWay
from blockyard.workers.description import ModelDescription

pytestmark = pytest.mark.timeout(30)

MODEL = ModelDescription("small", "/nowhere", "Witness", 64, 99, ())
IDENTITY = GroupIdentity("a", MODEL, "cpu", "int64", 4, "127.0.0.1", 1, b"secret")


class StuckGroup:
    """A group whose steps never end, and that is lost when a test says so."""

    def __init__(self) -> None:
        self.acknowledged_step = 0
        self.weight_version = ""
        self.lost: str | None = None
        self._change: Callable[[], None] = lambda: None

    def on_change(self, callback: Callable[[], None]) -> None:
        self._change = callback

    async def execute(self, plan: StepPlan) -> StepResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        pass

    def lose(self) -> None:
        self.lost = "rank 0 melted"
        self._change()


class Central:
    """Hears one engine's link; each connection's messages in a queue of their own."""

    def __init__(self) -> None:
        self.group = StuckGroup()
        self.calls: asyncio.Queue[Connection[ToCentral]] = asyncio.Queue()
        self.failures: list[Exception] = []
        self._listener: Listener
        self.server: EngineServer
        self.running: asyncio.Task[None]

    async def start(self) -> None:
        codec: Codec[ToCentral] = Codec(ToCentral)
        self._listener = await listen(codec, self._serve)
        changed = asyncio.Event()
        scheduler = Scheduler(SchedulerConfig(64, block_size=4), 8)
        self.server = await EngineServer.start(scheduler, self.group, "127.0.0.1", changed.set)
        link = CentralLink(self.server, IDENTITY, self._locate, changed)
        self.running = asyncio.create_task(link.run())

    async def _locate(self) -> Endpoint:
        if self.failures:
            raise self.failures.pop()
        return self._listener.endpoint

    async def _serve(self, connection: Connection[ToCentral]) -> None:
        self.calls.put_nowait(connection)
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.server.close()
        await self._listener.close()


@pytest.fixture
async def central(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Central]:
    monkeypatch.setattr(standing_link, "_FIRST_RETRY_SECONDS", 0.001)
    made = Central()
    await made.start()
    yield made
    await made.close()


async def test_it_joins_pushes_changes_and_hears_of_the_drain(central: Central) -> None:
    call = await central.calls.get()
    assert await call.receive() == Join(IDENTITY, central.server.ledger(), False)
    central.server.engine.submit(RequestSpec("x", (1, 2), SamplingParams(max_tokens=3)))
    push = await call.receive()
    assert isinstance(push, LedgerPush) and not push.draining
    assert push.ledger.requests.running + push.ledger.requests.waiting == 1
    call.post(Drain())
    while isinstance(push := await call.receive(), LedgerPush) and not push.draining:
        pass
    assert central.server.draining


async def test_without_changes_nothing_is_pushed(
    central: Central, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(central_link, "PUSH_SECONDS", 0.0)
    call = await central.calls.get()
    pushes = 0

    async def count() -> None:
        nonlocal pushes
        while isinstance(await call.receive(), LedgerPush | Join):
            pushes += 1

    counting = asyncio.create_task(count())
    central.server.engine.submit(RequestSpec("x", (1, 2), SamplingParams(max_tokens=3)))
    for _ in range(200):  # turns of the event loop, in each of which a push could be made
        await asyncio.sleep(0)
    assert 1 <= pushes <= 4  # to join, and for the request
    counting.cancel()


async def test_an_engine_that_drains_says_so_when_it_joins_again(central: Central) -> None:
    call = await central.calls.get()
    assert isinstance(await call.receive(), Join)
    central.server.start_drain()
    assert isinstance(await call.receive(), LedgerPush)
    await call.close()
    call = await central.calls.get()
    assert await call.receive() == Join(IDENTITY, central.server.ledger(), True)


async def test_an_engine_tells_what_each_tenant_has_under_way(central: Central) -> None:
    call = await central.calls.get()
    asked: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
        ("a0", 2, 0, {"tenant": "a"}), ("a1", 5, 0, {"tenant": "a", "num_choices": 2}),
        ("a2", 3, 1, {"tenant": "a"}), ("b", 1, 0, {"tenant": "b"}), ("gone", 9, 0, {}),
    )  # fmt: skip
    for name, tokens, priority, told in asked:
        prompt = tuple(range(1, tokens + 1))
        central.server.engine.submit(
            RequestSpec(name, prompt, SamplingParams(max_tokens=3), priority, **told)
        )
    central.server.engine.abort("gone")
    await call.close()
    join = await (await central.calls.get()).receive()
    assert isinstance(join, Join)
    assert set(join.under_way) == {UnderWay(0, "a", 7), UnderWay(1, "a", 3), UnderWay(0, "b", 1)}


async def test_nothing_that_the_search_raises_ends_the_link(central: Central) -> None:
    call = await central.calls.get()
    central.failures = [ConnectionError("down"), RuntimeError("odd"), ValueError("odder")]
    await call.close()
    call = await central.calls.get()
    assert isinstance(await call.receive(), Join)
    assert central.failures == []


async def test_a_central_scheduler_that_talks_nonsense_is_called_again(central: Central) -> None:
    call = await central.calls.get()
    call.post(LedgerPush(central.server.ledger(), False))
    call = await central.calls.get()
    assert isinstance(await call.receive(), Join)


async def test_a_lost_engine_leaves_and_does_not_come_back(central: Central) -> None:
    call = await central.calls.get()
    assert isinstance(await call.receive(), Join)
    central.group.lose()
    while await call.receive() is not None:
        pass
    await central.running
    assert central.calls.empty()
