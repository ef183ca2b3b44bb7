"""Traffic that is made up: as told, the same each time, and wrong words named."""

import pytest

from blockyard.scheduler.simulated.synthetic import SyntheticTraffic, parse_synthetic


def test_it_is_as_told_and_always_the_same() -> None:
    traffic = parse_synthetic("requests=4000, rate=2.5, prompt=300, output=90, longest=1000")
    arrivals = list(traffic.arrivals())
    assert len(arrivals) == 4000
    assert arrivals[-1].seconds == pytest.approx(1600, rel=0.05)
    assert [a.seconds for a in arrivals] == sorted(a.seconds for a in arrivals)
    assert sum(a.prompt_tokens for a in arrivals) / 4000 == pytest.approx(300, rel=0.06)
    assert sum(a.output_tokens for a in arrivals) / 4000 == pytest.approx(90, rel=0.06)
    longest = max(a.prompt_tokens + a.output_tokens for a in arrivals)
    assert longest <= traffic.most_tokens
    assert list(traffic.arrivals()) == arrivals
    assert list(SyntheticTraffic(3, 1.0, seed=2).arrivals()) != list(
        SyntheticTraffic(3, 1.0).arrivals()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("requests=5", "rate="),
        ("requests=5,rate=0", "rate=0.0"),
        ("requests=5,rate=1,tokens=3", "tokens=3"),
        ("requests=many,rate=1", "requests=many"),
        ("requests=inf,rate=1", "requests=inf"),
    ],
)
def test_wrong_words_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_synthetic(text)
