import pytest

from blockyard.scheduler.capacity.verdict import Finding, give_verdict
from blockyard.scheduler.capacity.waste_math import hole_case, share_prefix, static_batch_work


def test_a_static_batch_waits_for_its_longest() -> None:
    work = static_batch_work([10, 50, 100, 200])
    assert (work.iterations, work.useful, work.computed) == (200, 360, 800)
    assert work.useful_ratio == 0.45
    verdict = give_verdict(None, None, None, batch_useful_ratio=work.useful_ratio)
    assert verdict.findings == (Finding.STATIC_BATCHING,)
    assert give_verdict(None, None, None, batch_useful_ratio=1.0).findings == ()


@pytest.mark.parametrize("outputs", [[], [10, 0]])
def test_a_batch_needs_outputs(outputs: list[int]) -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        static_batch_work(outputs)


@pytest.mark.parametrize(
    ("free", "hole", "request_bytes", "fragmentation"),
    [
        (6_000_000_000, 2_500_000_000, 4_000_000_000, 0.58),
        (2_000_000_000, 300_000_000, 800_000_000, 0.85),
    ],
)
def test_contiguous_refuses_what_blocks_serve(
    free: int, hole: int, request_bytes: int, fragmentation: float
) -> None:
    case = hole_case(free, hole, request_bytes)
    assert case.external_fragmentation == pytest.approx(fragmentation, abs=0.005)
    assert (case.contiguous_serves, case.blocks_serve) == (False, True)
    verdict = give_verdict(None, None, None, case.external_fragmentation)
    assert verdict.findings == (Finding.OUT_OF_MEMORY_RISK,)


def test_a_hole_without_the_sum_of_all_holes() -> None:
    case = hole_case(None, 3_200_000_000, 3_355_443_200)
    assert not case.contiguous_serves
    assert (case.external_fragmentation, case.blocks_serve) == (None, None)
    assert hole_case(None, 10, 10).blocks_serve is True


def test_more_than_all_that_is_free_nobody_serves() -> None:
    case = hole_case(10, 5, 11)
    assert (case.contiguous_serves, case.blocks_serve) == (False, False)
    assert hole_case(0, 0, 1).external_fragmentation == 0


@pytest.mark.parametrize("case", [(10, 11, 1), (10, 5, -1), (-1, 0, 0)])
def test_holes_that_cannot_be_are_refused(case: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"swap|negative"):
        hole_case(*case)


def test_a_prefix_is_stored_once() -> None:
    shared = share_prefix(512, 1000, 16, 819_200)
    assert shared.stored_bytes == 419_430_400
    assert shared.unshared_bytes == 419_430_400_000
    assert shared.saved_bytes == 419_010_969_600


def test_only_whole_blocks_of_a_prefix_are_shared() -> None:
    shared = share_prefix(20, 10, 16, 1)
    assert (shared.shared_tokens, shared.stored_bytes, shared.unshared_bytes) == (16, 56, 200)


@pytest.mark.parametrize(
    ("utilisation", "p99", "limit", "fragmentation", "findings"),
    [
        (0.33, 1100, 2048, None, [Finding.RESERVATION_WASTE]),
        (0.33, 1300, 2048, None, [Finding.BLOCKS_PAY]),
        (0.60, 1100, 2048, None, [Finding.BLOCKS_PAY]),
        (0.80, 1100, 2048, None, [Finding.WELL_USED]),
        (0.33, 1100, 2048, 0.21, [Finding.OUT_OF_MEMORY_RISK, Finding.RESERVATION_WASTE]),
        (0.80, 1100, 2048, 0.20, [Finding.WELL_USED]),
        (0.33, None, None, None, [Finding.RESERVATION_WASTE]),
        (None, None, None, None, []),
    ],
)
def test_the_rules(
    utilisation: float | None,
    p99: float | None,
    limit: int | None,
    fragmentation: float | None,
    findings: list[Finding],
) -> None:
    verdict = give_verdict(utilisation, p99, limit, fragmentation)
    assert list(verdict.findings) == findings


def test_the_words_carry_the_figures() -> None:
    text = give_verdict(0.195, 800, 4096, None, 5.12).text
    assert "20%" in text
    assert "several-fold (5.1 times)" in text
    assert "batching and caching" in give_verdict(0.8, 800, 1000).text
