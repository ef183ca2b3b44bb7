import pytest

from blockyard.scheduler.capacity.measurement import Load, measure_load
from blockyard.scheduler.capacity.verdict import Finding


def test_a_contiguous_server_that_is_full_of_promises() -> None:
    found = measure_load(Load(16_384, running=8, mean_length=680, limit=2048))
    assert (found.used_tokens, found.busy) == (5440, True)
    assert found.utilisation == pytest.approx(5440 / 16_384)
    contiguous = found.contiguous
    assert (contiguous.concurrency, contiguous.running) == (8, 8)
    assert (contiguous.reserved_tokens, contiguous.idle_tokens) == (16_384, 8 * 1368)
    assert contiguous.reservation_waste == pytest.approx(1368 / 2048)
    assert found.verdict.findings == (Finding.RESERVATION_WASTE,)
    assert found.blocks_concurrency == 23


def test_a_server_with_blocks_that_is_full_of_tokens() -> None:
    found = measure_load(Load(381_469, running=400, mean_length=800, limit=4096, p99_length=1500))
    assert found.contiguous.running == found.contiguous.concurrency == 93
    assert found.contiguous.pool_filled_ratio == pytest.approx(93 * 800 / 381_469)
    assert found.verdict.findings == (Finding.WELL_USED,)


def test_a_shared_prefix_is_used_once_and_held_by_each() -> None:
    load = Load(100_000, running=100, mean_length=2000, limit=4096, used_tokens=60_000)
    found = measure_load(load)
    assert found.utilisation == 0.6
    assert found.contiguous.reservation_waste == pytest.approx(1 - 2000 / 4096)


@pytest.mark.parametrize(
    ("load", "busy"),
    [
        (Load(100_000, running=2, mean_length=100, limit=1000), False),
        (Load(100_000, running=2, mean_length=100, limit=1000, waiting=1), True),
        (Load(100_000, running=80, mean_length=100, limit=1000), True),
        (Load(100_000, running=79, mean_length=100, limit=1000, used_tokens=80_000), True),
    ],
)
def test_a_server_without_work_is_not_busy(load: Load, busy: bool) -> None:
    assert measure_load(load).busy is busy


@pytest.mark.parametrize(
    ("mean", "p99", "finding"),
    [
        (300, None, Finding.RESERVATION_WASTE),
        (700, None, Finding.BLOCKS_PAY),
        (300, 599, Finding.RESERVATION_WASTE),
        (300, 600, Finding.BLOCKS_PAY),
    ],
)
def test_long_requests_are_no_reservation_waste(
    mean: float, p99: float | None, finding: Finding
) -> None:
    load = Load(10_000, running=5, mean_length=mean, limit=1000, p99_length=p99)
    assert measure_load(load).verdict.findings == (finding,)


@pytest.mark.parametrize(
    ("capacity", "running", "mean", "limit", "message"),
    [
        (0, 1, 1, 1, "capacity_tokens is 0"),
        (10, 0, 1, 1, "no request ran"),
        (10, 1, 0.5, 1, "mean_length is 0.5"),
        (100, 1, 20, 10, "check --max-seq-len"),
        (100, 11, 10, 10, "check --capacity-tokens"),
    ],
)
def test_counts_that_no_server_has_are_refused(
    capacity: int, running: float, mean: float, limit: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Load(capacity, running, mean, limit)


def test_a_memory_smaller_than_one_reservation_runs_nothing() -> None:
    found = measure_load(Load(1000, running=5, mean_length=100, limit=4096))
    assert (found.contiguous.concurrency, found.contiguous.pool_filled_ratio) == (0, 0)
