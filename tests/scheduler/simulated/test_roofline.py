import pytest

from blockyard.scheduler.simulated.roofline import H200, LLAMA_8B, step_seconds

BANDWIDTH = 4.8e12 * 0.8
ARITHMETIC = 989e12 * 0.6


def test_kv_bytes_of_a_token() -> None:
    assert LLAMA_8B.kv_bytes_per_token == 131_072


def test_one_decode_reads_all_weights_and_its_context() -> None:
    seconds = step_seconds(LLAMA_8B, H200, [1000], [1])
    assert seconds == pytest.approx(0.001 + (16e9 + 1001 * 131_072) / BANDWIDTH)


def test_a_large_prefill_is_bound_by_arithmetic() -> None:
    seconds = step_seconds(LLAMA_8B, H200, [0], [8192])
    attention = 4 * 32 * 32 * 128 * 8192 * 4096 / ARITHMETIC
    assert seconds == pytest.approx(0.001 + 2 * 8e9 * 8192 / ARITHMETIC + attention)


def test_rows_share_the_weights_and_pay_for_their_own_context() -> None:
    one = step_seconds(LLAMA_8B, H200, [1000], [1])
    many = step_seconds(LLAMA_8B, H200, [1000] * 64, [1] * 64)
    assert many - one == pytest.approx(63 * 1001 * 131_072 / BANDWIDTH)
    assert step_seconds(LLAMA_8B, H200, [], []) == 0.0
