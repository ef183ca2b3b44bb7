"""The engine's door, with a test in the place of every ingress and a witness in this process."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from blockyard.cluster.engine_server import EngineServer
from blockyard.cluster.local_group import LocalGroup
from blockyard.cluster.messages import (
    Abort,
    AskLedger,
    EngineToIngress,
    LedgerAnswer,
    Lost,
    Refused,
    Submit,
    Submitted,
    Updates,
)
from blockyard.cluster.wire import Codec, Connection, connect
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import RefusalCode, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker, witness_generate

pytestmark = pytest.mark.timeout(30)

VOCAB = 251


class GatedWitness(WitnessWorker):
    """Steps wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__(WorkerConfig("", 64, block_size=4, num_blocks=16), VOCAB)
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        self.gate.wait(timeout=30)
        if self.fault is not None:
            raise self.fault
        return super().execute(plan)


class Door:
    """An engine server and its visitors."""

    def __init__(self) -> None:
        self.worker = GatedWitness()
        self.group = LocalGroup(self.worker)
        self.server: EngineServer
        self.changes = 0
        self._visitors: list[Connection[EngineToIngress]] = []

    async def start(self) -> None:
        await self.group.load()
        config = SchedulerConfig(64, block_size=4, max_running=8, max_step_tokens=32)
        self.server = await EngineServer.start(
            Scheduler(config, 16), self.group, "127.0.0.1", self._change
        )

    async def visit(self) -> Connection[EngineToIngress]:
        codec: Codec[EngineToIngress] = Codec(EngineToIngress)
        self._visitors.append(await connect(self.server.endpoint, codec))
        return self._visitors[-1]

    async def until(self, condition: Any) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        self.worker.gate.set()
        await self.server.close()
        await self.group.close()
        for visitor in self._visitors:
            await visitor.close()

    def _change(self) -> None:
        self.changes += 1


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    made = Door()
    await made.start()
    yield made
    await made.close()


def submit(ticket: int, request_id: str, prompt: tuple[int, ...], max_tokens: int) -> Submit:
    return Submit(ticket, RequestSpec(request_id, prompt, SamplingParams(max_tokens=max_tokens)))


async def tokens_of(visitor: Connection[EngineToIngress], request_id: str) -> list[int]:
    """What is told of a request from here on, to its end."""
    tokens: list[int] = []
    while (message := await visitor.receive()) is not None:
        if isinstance(message, Updates):
            for update in message.updates:
                if update.request_id == request_id:
                    tokens.extend(update.token_ids)
                    if update.finish_reason is not None:
                        return tokens
    pytest.fail(f"the engine hung up after {tokens}")


async def test_a_request_is_taken_and_told_of_to_its_end(door: Door) -> None:
    visitor = await door.visit()
    visitor.post(submit(5, "a", (1, 2), 9))
    assert await visitor.receive() == Submitted(5)
    assert await tokens_of(visitor, "a") == witness_generate((1, 2), 9, VOCAB)
    door.server.check()
    assert door.changes > 9


async def test_a_refusal_names_ticket_and_field(door: Door) -> None:
    visitor = await door.visit()
    visitor.post(submit(6, "a", (), 9))
    answer = await visitor.receive()
    assert isinstance(answer, Refused)
    assert (answer.ticket, answer.code, answer.field) == (6, RefusalCode.INVALID, "prompt")


async def test_a_request_belongs_to_who_submitted_it(door: Door) -> None:
    door.worker.gate.clear()
    owner, other = await door.visit(), await door.visit()
    owner.post(submit(1, "a", (1, 2), 9))
    assert await owner.receive() == Submitted(1)
    other.post(submit(2, "a", (3,), 9))
    answer = await other.receive()
    assert isinstance(answer, Refused) and answer.field == "request_id"
    other.post(Abort("a"))
    await other.close()
    door.worker.gate.set()
    assert await tokens_of(owner, "a") == witness_generate((1, 2), 9, VOCAB)


async def test_the_books_are_told_at_any_time(door: Door) -> None:
    door.worker.gate.clear()
    visitor = await door.visit()
    visitor.post(submit(1, "a", (1, 2), 9))
    visitor.post(AskLedger(44))
    assert await visitor.receive() == Submitted(1)
    answer = await visitor.receive()
    assert isinstance(answer, LedgerAnswer) and answer.ticket == 44
    requests = answer.books.ledger.requests
    assert requests.running + requests.waiting == 1


async def test_a_connection_that_ends_frees_what_ran_for_it_alone(door: Door) -> None:
    door.worker.gate.clear()
    leaving, staying = await door.visit(), await door.visit()
    leaving.post(submit(1, "a", (1, 2), 40))
    staying.post(submit(1, "b", (5,), 9))
    await door.until(lambda: door.server.engine.num_requests == 2)
    await leaving.close()
    await door.until(lambda: door.server.engine.num_requests == 1)
    door.worker.gate.set()
    assert await staying.receive() == Submitted(1)
    assert await tokens_of(staying, "b") == witness_generate((5,), 9, VOCAB)


async def test_an_ingress_that_speaks_out_of_turn_is_hung_up_on(door: Door) -> None:
    visitor = await door.visit()
    visitor.post(submit(1, "a", (1, 2), 40))
    visitor.post(Submitted(3))
    while await visitor.receive() is not None:
        pass
    await door.until(lambda: door.server.engine.num_requests == 0)


async def test_the_last_news_of_an_aborted_request_is_not_a_namesakes(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = asyncio.Event()

    async def drain(connection: object) -> None:
        await taken.wait()  # as if the ingress had not taken the last message yet

    monkeypatch.setattr(Connection, "drain", drain)
    visitor = await door.visit()
    visitor.post(submit(1, "first", (9,), 1))
    assert await visitor.receive() == Submitted(1)
    assert await tokens_of(visitor, "first") != []
    visitor.post(submit(2, "x", (1, 2), 5))
    assert await visitor.receive() == Submitted(2)
    await door.server.engine.wait_idle()  # "x" has ended; the news of it waits for its turn
    visitor.post(Abort("x"))
    visitor.post(submit(3, "x", (7,), 5))
    assert await visitor.receive() == Submitted(3)
    await door.server.engine.wait_idle()
    taken.set()
    assert await tokens_of(visitor, "x") == witness_generate((7,), 5, VOCAB)


async def test_what_was_computed_is_told_before_the_server_closes(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drain(connection: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Connection, "drain", drain)
    visitor = await door.visit()
    visitor.post(submit(1, "a", (1, 2), 20))
    assert await visitor.receive() == Submitted(1)
    door.server.start_drain()
    await door.server.engine.wait_idle()
    closing = asyncio.create_task(door.server.close())
    assert await tokens_of(visitor, "a") == witness_generate((1, 2), 20, VOCAB)
    assert await visitor.receive() is None
    await closing


async def test_an_ingress_that_cannot_be_told_is_hung_up_on(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drain(connection: object) -> None:
        raise RuntimeError("nobody expected this")

    monkeypatch.setattr(Connection, "drain", drain)
    visitor = await door.visit()
    visitor.post(submit(1, "a", (1, 2), 40))
    while await visitor.receive() is not None:
        pass
    await door.until(lambda: door.server.engine.num_requests == 0)


async def test_a_lost_engine_tells_what_it_computed_and_why_it_hangs_up(door: Door) -> None:
    idle, busy = await door.visit(), await door.visit()
    busy.post(submit(1, "a", (1, 2), 40))
    assert await busy.receive() == Submitted(1)
    assert isinstance(await busy.receive(), Updates)
    door.worker.fault = RuntimeError("the device fell off the bus")
    while isinstance(message := await busy.receive(), Updates):
        pass
    assert isinstance(message, Lost)
    assert "bus" not in message.message and "send it again" in message.message
    assert await busy.receive() is None
    assert isinstance(await idle.receive(), Lost)
    assert await idle.receive() is None
    with pytest.raises(OSError):
        await door.visit()
    assert "fell off the bus" in (door.server.lost or "")
    assert door.server.engine.num_requests == 0
    await door.server.close()


async def test_a_request_is_owned_until_its_last_choice_has_ended(door: Door) -> None:
    door.worker.gate.clear()
    visitor = await door.visit()
    spec = RequestSpec("a", (1, 2), SamplingParams(max_tokens=5), num_choices=3)
    visitor.post(Submit(1, spec))
    assert await visitor.receive() == Submitted(1)
    visitor.post(Abort("a", 1))
    visitor.post(Abort("a", 1))
    visitor.post(AskLedger(2))
    assert isinstance(await visitor.receive(), LedgerAnswer)
    door.server.check()
    door.worker.gate.set()
    told: dict[int, list[int]] = {}
    ended: set[int] = set()
    while len(ended) < 2:
        message = await visitor.receive()
        assert isinstance(message, Updates)
        for update in message.updates:
            told.setdefault(update.choice, []).extend(update.token_ids)
            ended |= {update.choice} if update.finish_reason is not None else set()
    assert told == {choice: witness_generate((1, 2), 5, VOCAB, choice=choice) for choice in (0, 2)}
    assert not door.server.engine.serves("a")
    door.server.check()
