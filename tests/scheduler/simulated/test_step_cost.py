import pytest

from blockyard.scheduler.capacity.kv_math import KNOWN_SHAPES
from blockyard.scheduler.simulated.devices import (
    KNOWN_DEVICES,
    DeviceUnknown,
    device_from_json,
    device_to_json,
)
from blockyard.scheduler.simulated.roofline import H200, LLAMA_8B, step_seconds
from blockyard.scheduler.simulated.step_cost import make_step_cost

SHAPE = KNOWN_SHAPES["llama-3-8b"]


def test_decodes_are_priced_by_sums_as_by_rows() -> None:
    cost = make_step_cost(SHAPE, H200, 16, 1)
    starts = [5, 900, 12_000]
    assert cost.shape.num_query_heads == LLAMA_8B.num_query_heads
    rows = step_seconds(cost.shape, H200, starts, [1, 1, 1])
    assert cost.compute_seconds(starts, [1, 1, 1]) == pytest.approx(rows)
    assert cost.compute_seconds(starts, [1, 1, 9]) > rows


def test_ranks_share_the_work_and_pay_for_agreeing() -> None:
    one, two = (make_step_cost(SHAPE, H200, 16, ranks) for ranks in (1, 2))
    fixed = two.speed.step_overhead_seconds
    assert fixed == pytest.approx(one.speed.step_overhead_seconds + 64 * 10e-6)
    halved = (one.decode_seconds(8, 8000) - one.speed.step_overhead_seconds) / 2
    assert two.decode_seconds(8, 8000) == pytest.approx(fixed + halved)
    # A group's block lies in equal parts on both, each with a link of its own.
    assert two.copy_seconds(10) == pytest.approx(one.copy_seconds(10) / 2)
    assert one.copy_seconds(10) == pytest.approx(10 * 16 * 131_072 / 50e9)


def test_a_device_comes_back_from_json() -> None:
    device = KNOWN_DEVICES["a100"]
    assert device_from_json("file", device_to_json(device)) == device


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_bytes": None}, "memory_bytes"),
        ({"link_bytes_per_second": 0}, "above 0"),
        ({"operations_per_second": True}, "operations_per_second"),
        ({"cores": 3}, "cores"),
    ],
)
def test_a_device_that_makes_no_sense(change: dict[str, object], message: str) -> None:
    with pytest.raises(DeviceUnknown, match=message):
        device_from_json("my.json", {**device_to_json(KNOWN_DEVICES["h200"]), **change})
    with pytest.raises(DeviceUnknown, match="no JSON object"):
        device_from_json("my.json", [1])
