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


def test_rising_values_count_as_one_by_one() -> None:
    rng = random.Random(3)
    one, many = Histogram(), Histogram()
    for _ in range(200):
        start, slope = rng.uniform(0.001, 0.1), rng.uniform(0.0, 0.001)
        values = [start * (1 + slope * index) for index in range(rng.randrange(1, 30))]
        many.add_rising(values, 3)
        for value in values:
            one.add(value, 3)
    assert many.count == one.count
    assert many.total == pytest.approx(one.total)
    for share in range(101):
        assert many.quantile(share / 100) == one.quantile(share / 100)
