"""The shadow is told of each choice as of a request of its own, for that is what it costs there."""

from blockyard.cluster.books.shadow_feed import ShadowFeed
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams


def running(feed: ShadowFeed) -> list[int]:
    """How many pieces each policy has given out."""
    return [report.books.filled for report in feed.reports()][:2]


def test_choices_are_requests_of_their_own() -> None:
    feed = ShadowFeed(1024, 64, lambda: 0.0)
    spec = RequestSpec("a", (1,) * 10, SamplingParams(max_tokens=5), num_choices=3)
    feed.submitted(spec)
    assert running(feed) == [30, 30], "nothing is shared"
    feed.stepped([RequestUpdate("a", (7,), choice=choice) for choice in range(3)])
    feed.stepped([RequestUpdate("a", (7,), FinishReason.STOP, choice=1)])
    assert running(feed) == [20, 20]
    feed.aborted("a", 0)
    assert running(feed) == [10, 10]
    feed.aborted("a", None)
    feed.aborted("a", None)
    assert running(feed) == [0, 0]
    feed.submitted(RequestSpec("a", (1,) * 4, SamplingParams(max_tokens=5)))
    feed.stepped([RequestUpdate("a", (7,), FinishReason.STOP)])
    assert running(feed) == [0, 0] and feed.reports()


def test_what_is_told_late_is_told_with_its_time() -> None:
    """Two requests that one after the other find no room: the first refusal is the first's."""
    clock = iter(range(100))
    feed = ShadowFeed(64, 64, lambda: float(next(clock)))
    for name in ("a", "b", "c"):
        feed.submitted(RequestSpec(name, (1,) * 10, SamplingParams(max_tokens=5)))
    reserving = feed.reports()[0]
    # The clock stood at 0 when it began, at 1 when "a" came, and at 2 with "b".
    assert (reserving.books.running, reserving.queued) == (1, 2)
    assert reserving.first_refusal_seconds == 2.0


def test_what_nobody_has_time_for_is_told_at_last() -> None:
    feed = ShadowFeed(1024, 64, lambda: 0.0)
    told = feed._shadow
    assert told is not None
    for number in range(600):
        feed.submitted(RequestSpec(str(number), (1,) * 10, SamplingParams(max_tokens=5)))
        feed.aborted(str(number), None)
    assert len(feed._untold) < 1024
    assert running(feed) == [0, 0]
