import math

from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.move_cost import (
    FORGET_SECONDS,
    LinkMeter,
    LinkModel,
    bring_seconds,
    is_worth_bringing,
)

RATES = CostModel(block_bytes=1000, prefill_tokens_per_second=100.0, link_bytes_per_second=0.0)


def test_the_cheaper_way_is_taken_by_rates_and_size() -> None:
    fast, slow = LinkModel(0.05, 100_000.0), LinkModel(0.05, 1000.0)
    assert is_worth_bringing(RATES, fast, 10, 160), "0.15 s against 1.6 s"
    assert not is_worth_bringing(RATES, slow, 10, 160), "10 s"
    assert not is_worth_bringing(RATES, fast, 1, 4), "0.06 s against 0.04 s: it is too small"
    assert not is_worth_bringing(RATES, LinkModel(), 1, 0), "there is nothing in it"


def test_a_copy_to_the_device_is_paid_too() -> None:
    rates = CostModel(1000, 100.0, link_bytes_per_second=5000.0)
    assert bring_seconds(rates, LinkModel(0.5, 10_000.0), 10) == 0.5 + 1.0 + 2.0
    assert bring_seconds(RATES, LinkModel(0.5, 10_000.0), 10) == 1.5


def test_what_is_not_measured_is_tried() -> None:
    assert is_worth_bringing(RATES, LinkModel(), 100, 1)
    unmeasured = CostModel(1000, 0.0, 0.0)
    assert is_worth_bringing(unmeasured, LinkModel(1.0, 1.0), 100, 1)


def test_a_wire_is_known_by_what_came_last_and_forgotten_in_time() -> None:
    meter = LinkMeter()
    assert meter.model(0.0) == LinkModel(0.0, 0.0)
    meter.observe(1000, 1.0, now=0.0)
    meter.observe_delay(0.2)
    assert meter.model(1.0) == LinkModel(0.2, 1000.0)
    for _ in range(8):
        meter.observe(1000, 0.1, now=2.0)
        meter.observe_delay(0.1)
    known = meter.model(2.0)
    assert math.isclose(known.bytes_per_second, 10_000, rel_tol=0.1)
    assert math.isclose(known.delay_seconds, 0.1, rel_tol=0.1)
    assert meter.model(2.0 + FORGET_SECONDS + 1).bytes_per_second == 0.0
    meter.observe(0, 0.1, now=100.0)
    meter.observe(10, 0.0, now=100.0)
    assert meter.model(100.0).bytes_per_second == 0.0, "that tells nothing"
