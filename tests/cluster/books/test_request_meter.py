"""What is counted of requests, through everything that may become of them."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from blockyard.cluster.books.request_meter import RequestMeter
from blockyard.cluster.metrics import encode_reports
from blockyard.scheduler.request import (
    FinishReason,
    RefusalCode,
    RequestRefused,
    RequestSpec,
    RequestUpdate,
    Timings,
)
from blockyard.scheduler.sampling import SamplingParams

SPEC = RequestSpec("r", (1, 2, 3), SamplingParams())


class Played:
    """A stream that plays updates, each at its time."""

    def __init__(self, rig: "Rig", script: Sequence[tuple[float, Any]]) -> None:
        self._rig = rig
        self._script = script
        self.aborts: list[int | None] = []

    async def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        for when, what in self._script:
            self._rig.now = when
            if isinstance(what, Exception):
                raise what
            yield what

    async def abort(self, choice: int | None = None) -> None:
        self.aborts.append(choice)


class Rig:
    def __init__(self) -> None:
        self.now = 10.0
        self.meter = RequestMeter(lambda: self.now)

    async def follow(self, *script: tuple[float, Any], placed_at: float = 10.0) -> Any:
        async def submission() -> Played:
            self.now = placed_at
            return Played(self, script)

        return await self.meter.follow("m", SPEC, submission())

    def value(self, name: str, **labels: str) -> float:
        text = encode_reports((), "", (self.meter,))[0].decode()
        samples = (
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and sample.labels == {"model": "m", **labels}
        )
        return sum(sample.value for sample in samples)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def update(*tokens: int, reason: FinishReason | None = None, **more: Any) -> RequestUpdate:
    return RequestUpdate("r", tokens, reason, **more)


async def test_an_answer_counts_once(rig: Rig) -> None:
    timings = Timings(0.5, 1.0, 2.0, preemptions=3)
    stream = await rig.follow(
        (12.0, update(7)),
        (12.5, update(8)),
        (13.5, update(9, 10, reason=FinishReason.LENGTH, cached_tokens=2, timings=timings)),
    )
    assert [token async for each in stream for token in each.token_ids] == [7, 8, 9, 10]
    assert rig.value("blockyard_requests_ended_total", outcome="length") == 1
    assert rig.value("blockyard_first_token_seconds_count") == 1
    assert rig.value("blockyard_first_token_seconds_sum") == 2.0
    # One of half a second, and two that share a whole one.
    assert rig.value("blockyard_inter_token_seconds_count") == 3
    assert rig.value("blockyard_inter_token_seconds_sum") == 1.5
    assert rig.value("blockyard_inter_token_seconds_bucket", le="0.5") == 3
    assert rig.value("blockyard_request_seconds_sum") == 3.5
    assert rig.value("blockyard_queue_seconds_sum") == 0.5
    assert rig.value("blockyard_request_preemptions_total") == 3
    for kind, count in (("prompt", 3), ("cached", 2), ("answer", 4)):
        assert rig.value("blockyard_request_tokens_total", kind=kind) == count
    await stream.abort()
    assert rig.value("blockyard_requests_ended_total", outcome="left") == 0


@pytest.mark.parametrize(
    ("queued", "counted"),
    [
        (0.5, 3.0),
        # It went on at another group, which counts from the arrival and all that came since.
        (7.0, 4.0),
    ],
)
async def test_the_wait_for_a_group_is_waiting_too(rig: Rig, queued: float, counted: float) -> None:
    timings = Timings(queued, 0.25, 0.5, preemptions=0)
    last = update(8, reason=FinishReason.LENGTH, timings=timings)
    stream = await rig.follow((14.0, update(7)), (19.0, last), placed_at=12.5)
    assert len([each async for each in stream]) == 2
    assert rig.value("blockyard_queue_seconds_sum") == counted


async def test_who_ends_in_the_queue_has_waited_all_the_time(rig: Rig) -> None:
    last = update(reason=FinishReason.DEADLINE, timings=Timings(6.0, 0.0, 0.0, preemptions=0))
    stream = await rig.follow((18.5, last), placed_at=12.5)
    assert len([each async for each in stream]) == 1
    assert rig.value("blockyard_queue_seconds_sum") == 8.5


async def test_several_answers_are_one_request_with_one_first_token(rig: Rig) -> None:
    stop = FinishReason.STOP
    stream = await rig.follow(
        (11.0, update(1)),
        (12.0, update(2, choice=1)),
        (13.0, update(3, reason=stop)),
        (16.0, update(4, reason=stop, choice=1)),
    )
    assert len([each async for each in stream]) == 4
    assert rig.value("blockyard_requests_ended_total", outcome="stop") == 1
    assert rig.value("blockyard_first_token_seconds_count") == 1
    assert rig.value("blockyard_inter_token_seconds_sum") == 2.0 + 4.0


async def test_a_client_that_leaves(rig: Rig) -> None:
    stream = await rig.follow((11.0, update(1)), (12.0, update(2)))
    async for _ in stream:
        break
    for _ in range(2):
        await stream.abort()
    assert rig.value("blockyard_requests_ended_total", outcome="left") == 1
    assert rig.value("blockyard_request_seconds_sum") == 1.0


async def test_one_answer_that_is_cut_is_no_end(rig: Rig) -> None:
    stream = await rig.follow((11.0, update(1, reason=FinishReason.STOP, choice=1)))
    await stream.abort(0)
    assert rig.value("blockyard_requests_ended_total", outcome="left") == 0
    assert len([each async for each in stream]) == 1
    assert rig.value("blockyard_requests_ended_total", outcome="stop") == 1


async def test_a_group_that_is_lost(rig: Rig) -> None:
    lost = RequestRefused(RefusalCode.UNAVAILABLE, "gone")
    stream = await rig.follow((11.0, update(1)), (12.0, lost))
    with pytest.raises(RequestRefused):
        async for _ in stream:
            pass
    code = RefusalCode.UNAVAILABLE.value
    assert rig.value("blockyard_requests_ended_total", outcome=code) == 1


async def test_a_refusal(rig: Rig) -> None:
    async def refuse() -> Any:
        raise RequestRefused(RefusalCode.EXHAUSTED, "too many wait")

    with pytest.raises(RequestRefused):
        await rig.meter.follow("m", SPEC, refuse())
    code = RefusalCode.EXHAUSTED.value
    assert rig.value("blockyard_requests_ended_total", outcome=code) == 1
    assert rig.value("blockyard_request_tokens_total", kind="prompt") == 0
    assert rig.value("blockyard_request_seconds_count") == 0
