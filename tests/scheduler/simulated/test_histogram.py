import random

import pytest

from blockyard.scheduler.simulated.histogram import Histogram


def test_quantiles_are_right_to_half_a_percent() -> None:
    rng = random.Random(7)
    values = sorted(rng.lognormvariate(-4, 2) for _ in range(5000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        exact = values[max(0, round(share * 5000) - 1)]
        assert histogram.quantile(share) == pytest.approx(exact, rel=0.0051)
    assert histogram.total == pytest.approx(sum(values))


def test_a_value_may_count_often() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.5) is None
    histogram.add(1.0, 99)
    histogram.add(50.0)
    histogram.add(0.0)
    assert histogram.count == 101
    assert histogram.quantile(0.5) == pytest.approx(1.0, rel=0.006)
    assert histogram.quantile(1.0) == pytest.approx(50.0, rel=0.006)
    assert histogram.quantile(0.0) == pytest.approx(1e-9, rel=0.006)
