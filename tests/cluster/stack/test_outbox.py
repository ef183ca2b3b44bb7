import asyncio

from blockyard.cluster.outbox import Outbox, merge_updates
from blockyard.scheduler.request import FinishReason, RequestUpdate, Timings

TIMINGS = Timings(1.0, 2.0, 3.0, 4)


def test_merging_keeps_all_tokens_in_order_and_the_end() -> None:
    earlier = RequestUpdate("a", (1, 2))
    later = RequestUpdate(
        "a", (3,), FinishReason.ERROR, error="why", cached_tokens=5, timings=TIMINGS
    )
    assert merge_updates(earlier, later) == RequestUpdate(
        "a", (1, 2, 3), FinishReason.ERROR, error="why", cached_tokens=5, timings=TIMINGS
    )


def test_merging_keeps_which_weights_made_the_tokens() -> None:
    """The first of all have no name; news without tokens say nothing of weights."""
    started, second = RequestUpdate("a", (1,)), RequestUpdate("a", (2,), weights=("2",))
    third = RequestUpdate("a", (3,), weights=("3",))
    end = RequestUpdate("a", (), FinishReason.LENGTH)
    assert merge_updates(started, started).weights == ()
    assert merge_updates(started, second).weights == ("", "2")
    assert merge_updates(merge_updates(started, second), third).weights == ("", "2", "3")
    assert merge_updates(second, second).weights == ("2",)
    assert merge_updates(second, end).weights == ("2",)
    assert merge_updates(end, third).weights == ("3",)


async def test_news_is_taken_once_and_merged_by_request() -> None:
    outbox = Outbox()
    for update in (
        RequestUpdate("a", (1,)),
        RequestUpdate("b", (7,)),
        RequestUpdate("a", (2,), FinishReason.STOP),
    ):
        outbox.put(update)
    await outbox.wait()
    assert outbox.take() == (
        RequestUpdate("a", (1, 2), FinishReason.STOP),
        RequestUpdate("b", (7,)),
    )
    assert outbox.take() == ()


async def test_waiting_ends_with_the_next_news_and_not_before() -> None:
    outbox = Outbox()
    outbox.put(RequestUpdate("a", (1,)))
    outbox.take()
    waiting = asyncio.create_task(outbox.wait())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    outbox.put(RequestUpdate("a", (2,)))
    await waiting
    assert outbox.take() == (RequestUpdate("a", (2,)),)


async def test_what_is_discarded_is_told_to_nobody() -> None:
    outbox = Outbox()
    outbox.put(RequestUpdate("a", (1,)))
    outbox.put(RequestUpdate("b", (2,)))
    outbox.discard("a")
    outbox.discard("unknown")
    outbox.put(RequestUpdate("a", (3,)))
    assert set(outbox.take()) == {RequestUpdate("a", (3,)), RequestUpdate("b", (2,))}
