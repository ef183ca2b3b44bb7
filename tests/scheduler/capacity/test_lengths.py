import numpy as np
import pytest

from blockyard.scheduler.capacity.lengths import constant_lengths, fitted_lengths, measured_lengths


@pytest.mark.parametrize(("mean", "p99"), [(680, 1850), (100, 101), (50, 700)])
def test_the_fit_has_the_mean_and_the_p99_it_was_told(mean: float, p99: float) -> None:
    lengths = fitted_lengths(mean, p99)
    assert lengths.samples.mean() == pytest.approx(mean)
    assert np.quantile(lengths.samples, 0.99) == pytest.approx(p99, rel=0.01)
    assert (lengths.mean, lengths.p99) == (mean, p99)


def test_cutting_at_the_limit_keeps_what_was_stated() -> None:
    lengths = fitted_lengths(680, 1850).within(2048)
    assert lengths.samples.mean() == pytest.approx(680)
    assert lengths.samples.max() < 2048 * 1.001
    assert (lengths.mean, lengths.p99) == (680, 1850)


def test_measured_requests_over_the_limit_are_left_out_and_counted() -> None:
    lengths = measured_lengths([10, 20, 30, 1000], "a test").within(100)
    assert lengths.mean == 20
    assert lengths.assumption.endswith("; 1 of them are over the limit and left out")


def test_blocks_are_whole_and_at_least_one_is_each_requests_own() -> None:
    lengths = measured_lengths([1, 16, 17, 33], "a test")
    assert lengths.mean_blocks(16) == (1 + 1 + 2 + 3) / 4
    assert lengths.mean_blocks(16, shared_tokens=16) == (1 + 1 + 1 + 2) / 4
    assert lengths.deviation_of_blocks(16) == pytest.approx(np.std([1, 1, 2, 3]))


@pytest.mark.parametrize(
    ("mean", "p99", "message"),
    [
        (100, 99, "below the mean"),
        (100, 1600, "16.0 times the mean"),
        (0.5, 2, "at least 1 token"),
        (0, 0, "at least 1 token"),
    ],
)
def test_what_no_distribution_has_is_refused(mean: float, p99: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted_lengths(mean, p99)


def test_lengths_that_the_server_would_never_take_are_refused() -> None:
    with pytest.raises(ValueError, match="holds no requests"):
        measured_lengths([], "an empty trace")
    for lengths in (constant_lengths(200), measured_lengths([200], "t"), fitted_lengths(100, 300)):
        with pytest.raises(ValueError, match="over the limit of 90"):
            lengths.within(90)
