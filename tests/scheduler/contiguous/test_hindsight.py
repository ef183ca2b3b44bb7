"""The oracle of the shadow, which plays what happened once it knows how it ended."""

from blockyard.scheduler.contiguous.hindsight import HindsightServer
from blockyard.scheduler.contiguous.shadow import ContiguousShadow
from blockyard.scheduler.contiguous.shadow_server import ShadowRequest
from blockyard.scheduler.request import RequestUpdate


def tokens(name: str) -> RequestUpdate:
    return RequestUpdate(name, (1,))


def test_the_oracle_looks_back_and_says_how_far() -> None:
    shadow = ContiguousShadow(100, 50, began=1000.0)
    shadow.arrive("a", 10, 40, 1001.0)
    shadow.arrive("b", 10, 40, 1002.0)
    for second in range(5):
        shadow.advance([tokens("a"), tokens("b")], 1003.0 + second)
    exact = shadow.report(1010.0)[2]
    assert (exact.books.running, exact.behind_seconds) == (0, 9.0)  # a's end is not known
    shadow.end("a", 1010.0)
    exact = shadow.report(1011.0)[2]
    # a is known to end at 14 slots; b arrived next and is not decided.
    assert (exact.books.running, exact.books.free, exact.behind_seconds) == (1, 86, 9.0)
    assert exact.books.filled == 10  # as it was when b came
    shadow.end("b", 1012.0)
    exact = shadow.report(1013.0)[2]
    assert (exact.books.running, exact.books.free, exact.peak_running) == (0, 100, 2)


def test_the_oracle_spreads_tokens_evenly_and_guesses_when_its_log_is_full() -> None:
    oracle = HindsightServer(100, 50, longest_log=2)
    one = ShadowRequest("a", 10, 30, 20, first_step=2, end_step=12)
    other = ShadowRequest("b", 5, 25, 7)
    oracle.arrive(one, 0, 0.0)
    oracle.arrive(other, 7, 1.0)
    oracle.catch_up(10, 9)
    assert oracle.report(2.0).books.filled == 15  # step 7: half of the ten slots
    oracle.arrive(ShadowRequest("c", 5, 25, 4), 8, 1.5)
    oracle.arrive(ShadowRequest("d", 5, 25, 4), 8, 1.5)
    oracle.catch_up(10, 9)
    report = oracle.report(2.0)
    assert (report.books.running, report.books.free) == (2, 55)  # b by what it was allowed
    assert report.behind_seconds == 0.5
    oracle.check()
