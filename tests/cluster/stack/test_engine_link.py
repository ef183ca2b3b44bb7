"""An ingress's side of one engine, with a test in the engine's place."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from blockyard.cluster import engine_link
from blockyard.cluster.books.group_books import GroupBooks
from blockyard.cluster.engine_link import EngineLink
from blockyard.cluster.engine_stream import EngineStream
from blockyard.cluster.messages import (
    Abort,
    AskLedger,
    GroupIdentity,
    IngressToEngine,
    LedgerAnswer,
    Lost,
    Refused,
    Submit,
    Submitted,
    Updates,
)
from blockyard.cluster.wire import Codec, Connection, Listener, listen
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.request import (
    FinishReason,
    RefusalCode,
    RequestRefused,
    RequestSpec,
    RequestUpdate,
)
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.description import ModelDescription

pytestmark = pytest.mark.timeout(30)


def books_of_step(step: int) -> GroupBooks:
    ledger = GroupLedger(
        blocks=BlockCounts(total=1, free=1, cached=0, active=0, fenced=0),
        slots=SlotCounts(filled=0, promised=0, empty_tail=0),
        requests=RequestCounts(running=0, waiting=0, parked=0),
        block_size=4,
        step=step,
        preemptions=0,
        stalled_steps=0,
    )
    return GroupBooks(ledger)


def spec(request_id: str) -> RequestSpec:
    return RequestSpec(request_id, (1, 2), SamplingParams(max_tokens=9))


class Engine:
    """What the ingress says is kept; a test says what the engine says."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[IngressToEngine | None] = asyncio.Queue()
        self.wire: Connection[IngressToEngine]
        self.link: EngineLink
        self._listener: Listener

    async def start(self) -> None:
        codec: Codec[IngressToEngine] = Codec(IngressToEngine)
        self._listener = await listen(codec, self._serve)
        endpoint = self._listener.endpoint
        model = ModelDescription("small", "/nowhere", "Witness", 64, 99, ())
        self.identity = GroupIdentity(
            "a", model, "cpu", "int64", 4, endpoint.host, endpoint.port, endpoint.secret
        )
        self.link = await EngineLink.connect(self.identity)

    async def submit(self, request_id: str, num_choices: int = 1) -> EngineStream:
        """A request that is taken."""
        asked = replace(spec(request_id), num_choices=num_choices)
        submitting = asyncio.create_task(self.link.submit(asked))
        message = await self.heard.get()
        assert isinstance(message, Submit) and message.spec == asked
        self.wire.post(Submitted(message.ticket))
        return await submitting

    async def next_submit(self) -> Submit:
        while not isinstance(message := await self.heard.get(), Submit):
            pass
        return message

    async def close(self) -> None:
        await self.link.close()
        await self._listener.close()

    async def _serve(self, connection: Connection[IngressToEngine]) -> None:
        self.wire = connection
        while (message := await connection.receive()) is not None:
            self.heard.put_nowait(message)
        self.heard.put_nowait(None)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    await made.start()
    yield made
    await made.close()


async def collect(stream: EngineStream) -> list[int]:
    return [token async for update in stream for token in update.token_ids]


async def cancelled(task: "asyncio.Task[EngineStream]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_later_namesake_gets_nothing_of_a_submission_that_was_cancelled(
    engine: Engine,
) -> None:
    first = asyncio.create_task(engine.link.submit(spec("x")))
    old = await engine.next_submit()
    await cancelled(first)
    second = asyncio.create_task(engine.link.submit(spec("x")))
    new = await engine.next_submit()
    # All this the engine had said before it heard of the abort.
    engine.wire.post(Submitted(old.ticket))
    engine.wire.post(Updates((RequestUpdate("x", (66,)),)))
    engine.wire.post(Updates((RequestUpdate("x", (66,), FinishReason.LENGTH),)))
    engine.wire.post(Submitted(new.ticket))
    engine.wire.post(Updates((RequestUpdate("x", (1,), FinishReason.LENGTH),)))
    assert await collect(await second) == [1]


async def test_a_later_namesake_is_not_refused_for_an_earlier_one(engine: Engine) -> None:
    first = asyncio.create_task(engine.link.submit(spec("x")))
    old = await engine.next_submit()
    await cancelled(first)
    second = asyncio.create_task(engine.link.submit(spec("x")))
    new = await engine.next_submit()
    engine.wire.post(Refused(old.ticket, RefusalCode.INVALID, "no", "prompt"))
    engine.wire.post(Submitted(new.ticket))
    stream = await second
    await stream.abort()


async def test_a_refusal_is_the_engines_own_and_frees_the_name(engine: Engine) -> None:
    submitting = asyncio.create_task(engine.link.submit(spec("x")))
    message = await engine.next_submit()
    engine.wire.post(Refused(message.ticket, RefusalCode.EXHAUSTED, "too many wait", "prompt"))
    with pytest.raises(RequestRefused) as refused:
        await submitting
    assert (refused.value.code, refused.value.message, refused.value.field) == (
        RefusalCode.EXHAUSTED,
        "too many wait",
        "prompt",
    )
    assert engine.link.num_streams == 0
    await engine.submit("x")  # and the engine was not bothered with an abort
    assert engine.heard.empty()


async def test_an_engine_that_does_not_answer_is_not_waited_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_link, "ANSWER_SECONDS", 0.05)
    for question in (engine.link.submit(spec("x")), engine.link.books()):
        with pytest.raises(RequestRefused, match="does not answer") as refused:
            await question
        assert refused.value.code is RefusalCode.UNAVAILABLE
    assert engine.link.num_streams == 0
    submit, abort, _ = [await engine.heard.get() for _ in range(3)]
    assert abort == Abort("x")
    # Its late answers are nobody's.
    assert isinstance(submit, Submit)
    engine.wire.post(Submitted(submit.ticket))
    engine.wire.post(LedgerAnswer(2, books_of_step(1)))
    monkeypatch.undo()
    assert (await engine.submit("x")).accepted.done()


async def test_aborting_ends_the_iteration_wherever_it_is(engine: Engine) -> None:
    stream = await engine.submit("x")
    reading = asyncio.create_task(collect(stream))
    await asyncio.sleep(0)
    await stream.abort()
    await stream.abort()
    assert await reading == []
    assert await engine.heard.get() == Abort("x")
    assert await collect(stream) == []
    engine.wire.post(Updates((RequestUpdate("x", (5,)),)))  # said before it heard
    assert isinstance(await engine.submit("y"), EngineStream)
    assert await collect(stream) == []


async def test_a_stream_that_has_ended_is_not_aborted_and_ends_again(engine: Engine) -> None:
    stream = await engine.submit("x")
    engine.wire.post(Updates((RequestUpdate("x", (5,)), RequestUpdate("y", (6,)))))
    engine.wire.post(Updates((RequestUpdate("x", (7,), FinishReason.STOP),)))
    assert await collect(stream) == [5, 7]
    assert await collect(stream) == []
    await stream.abort()
    await engine.submit("z")
    assert engine.heard.empty()


async def test_tokens_that_came_before_the_loss_are_read_before_it(engine: Engine) -> None:
    stream = await engine.submit("x")
    engine.wire.post(Updates((RequestUpdate("x", (1,)),)))
    tokens: list[int] = []
    with pytest.raises(RequestRefused) as lost:
        async for update in stream:
            tokens.extend(update.token_ids)
            if tokens == [1]:
                # While the reader is busy with the first token.
                engine.wire.post(Updates((RequestUpdate("x", (2,)),)))
                engine.wire.post(Updates((RequestUpdate("x", (3,)),)))
                engine.wire.post(Lost("the workers were lost"))
                await engine.wire.close()
                while engine.link.open:
                    await asyncio.sleep(0.001)
    assert tokens == [1, 2, 3]
    assert lost.value.code is RefusalCode.UNAVAILABLE
    assert lost.value.message == "the workers were lost"


async def test_an_engine_that_goes_ends_whatever_waits_for_it(engine: Engine) -> None:
    stream = await engine.submit("x")
    waiting: list[asyncio.Task[object]] = [
        asyncio.create_task(collect(stream)),
        asyncio.create_task(engine.link.submit(spec("y"))),
        asyncio.create_task(engine.link.books()),
    ]
    await engine.next_submit()
    await engine.wire.close()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, RequestRefused)
        assert result.code is RefusalCode.UNAVAILABLE
        assert "the engine that ran this request is gone" in result.message
    assert not engine.link.open and engine.link.num_streams == 0
    for late in (engine.link.submit(spec("z")), engine.link.books()):
        with pytest.raises(RequestRefused):
            await late
    await stream.abort()


async def test_answers_about_the_books_find_their_questions(engine: Engine) -> None:
    first = asyncio.create_task(engine.link.books())
    second = asyncio.create_task(engine.link.books())
    asked = [await engine.heard.get() for _ in range(2)]
    tickets = [message.ticket for message in asked if isinstance(message, AskLedger)]
    for ticket in reversed(tickets):
        engine.wire.post(LedgerAnswer(ticket, books_of_step(ticket)))
    assert [(await first).ledger.step, (await second).ledger.step] == tickets


async def test_a_link_closed_at_once_hangs_up(engine: Engine) -> None:
    hasty = await EngineLink.connect(engine.identity)
    await hasty.close()  # before it has read anything
    assert not hasty.open
    assert await engine.heard.get() is None


async def test_the_same_id_is_not_submitted_twice(engine: Engine) -> None:
    stream = await engine.submit("x")
    with pytest.raises(RequestRefused) as refused:
        await engine.link.submit(spec("x"))
    assert (refused.value.code, refused.value.field) == (RefusalCode.INVALID, "request_id")
    engine.wire.post(Updates((RequestUpdate("x", (5,), FinishReason.STOP),)))
    assert await collect(stream) == [5]  # the first goes on undisturbed


async def test_a_stream_ends_with_the_last_of_its_choices(engine: Engine) -> None:
    stream = await engine.submit("x", 2)
    engine.wire.post(Updates((RequestUpdate("x", (1,), FinishReason.STOP, choice=1),)))
    engine.wire.post(Updates((RequestUpdate("x", (2,)), RequestUpdate("x", (3,)))))
    engine.wire.post(Updates((RequestUpdate("x", (4,), FinishReason.LENGTH),)))
    while engine.link.num_streams:
        await asyncio.sleep(0.001)
    told = [(update.choice, update.token_ids) async for update in stream]
    assert told == [(1, (1,)), (0, (2, 3, 4))]


async def test_a_choice_is_called_off_once_and_nothing_more_is_told_of_it(engine: Engine) -> None:
    stream = await engine.submit("x", 3)
    engine.wire.post(Updates((RequestUpdate("x", (9,), choice=2),)))
    assert (await anext(aiter(stream))).choice == 2
    await stream.abort(2)
    await stream.abort(2)
    engine.wire.post(Updates((RequestUpdate("x", (8,), FinishReason.STOP, choice=2),)))
    engine.wire.post(Updates((RequestUpdate("x", (7,), FinishReason.STOP, choice=0),)))
    assert (await anext(aiter(stream))).token_ids == (7,)
    await stream.abort(0)  # it has ended by itself
    await stream.abort(1)
    assert [await engine.heard.get() for _ in range(2)] == [Abort("x", 2), Abort("x", 1)]
    assert engine.heard.empty() and engine.link.num_streams == 0
    assert await collect(stream) == []
