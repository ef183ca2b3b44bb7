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
