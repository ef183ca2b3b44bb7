import random

import pytest

from blockyard.scheduler.simulated.devices import (
    Device,
    DeviceUnknown,
    device_from_json,
    device_to_json,
)
from blockyard.scheduler.simulated.measured_cost import MeasuredCost, StepSample, fit_cost

TRUE = MeasuredCost((1, 4, 16, 64), (0.05, 0.06, 0.1, 0.5), 0.002, 1e-5, 1e-7, 4096, 1e9)


Step = tuple[tuple[int, ...], tuple[int, ...], float]


def steps(count: int, noise: float = 0.0) -> list[Step]:
    rng = random.Random(4)
    found = []
    for _ in range(count):
        if rng.random() < 0.5:
            counts = tuple([1] * rng.choice((1, 4, 16)))
        else:
            counts = (rng.choice((4, 16, 60)), *([1] * rng.choice((0, 4))))
        starts = tuple(rng.randrange(0, 2000) for _ in counts)
        seconds = TRUE.compute_seconds(starts, counts) * (1 + noise * rng.uniform(-1, 1))
        found.append((starts, counts, seconds))
    return found


def samples(found: list[Step]) -> list[StepSample]:
    return [StepSample.of(*step) for step in found]


def test_a_fit_finds_what_made_the_steps() -> None:
    found = fit_cost(samples(steps(200)), 4096, 1e9)
    for starts, counts, seconds in steps(60):
        assert found.compute_seconds(starts, counts) == pytest.approx(seconds, rel=0.03)
    assert found.copy_seconds(10) == pytest.approx(10 * 4096 / 1e9)


def test_noise_gives_no_negative_costs() -> None:
    found = fit_cost(samples(steps(100, noise=0.3)), 4096, 1e9)
    parts = (*found.token_seconds, found.row_seconds, found.read_seconds, found.attend_seconds)
    assert min(parts) >= 0
    for starts, counts, seconds in steps(60):
        assert found.compute_seconds(starts, counts) == pytest.approx(seconds, rel=0.3)


def test_steps_that_were_held_up_count_for_what_they_took() -> None:
    rng = random.Random(2)
    held_up = [
        (starts, counts, seconds * (6 if rng.random() < 0.2 else 1))
        for starts, counts, seconds in steps(400)
    ]
    found = fit_cost(samples(held_up), 4096, 1e9)
    expected = sum(found.compute_seconds(starts, counts) for starts, counts, _ in held_up)
    assert expected == pytest.approx(sum(seconds for _, _, seconds in held_up), rel=0.01)


def test_the_line_goes_on_past_its_ends() -> None:
    assert TRUE.decode_seconds(1, 0) == pytest.approx(0.05 + 0.002 - 0.5e-7)
    beyond = 0.5 + 48 * (0.5 - 0.1) / (64 - 16)
    others = 0.002 + 112 * 1e-5 + 112 * 56 * 1e-7
    assert TRUE.compute_seconds([0], [112]) == pytest.approx(beyond + others)
    assert TRUE.compute_seconds([], []) == 0.0


def test_decodes_cost_the_same_by_sums_and_by_rows() -> None:
    assert TRUE.compute_seconds([9, 99, 999], [1, 1, 1]) == TRUE.decode_seconds(3, 1110)


def test_lines_without_direction_are_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        MeasuredCost((4, 4), (1.0, 2.0), 0, 0, 0, 1, 1)
    with pytest.raises(ValueError, match="at least two"):
        MeasuredCost((4,), (1.0,), 0, 0, 0, 1, 1)
    with pytest.raises(ValueError, match="one size"):
        fit_cost([StepSample.of((0,), (1,), 0.1)] * 3, 1, 1)


def test_a_measured_device_comes_back_from_json() -> None:
    device = Device("cpu", 8_000_000_000, TRUE)
    value = device_to_json(device)
    assert device_from_json("file", value) == device
    del value["measured"]["row_seconds"]
    with pytest.raises(DeviceUnknown, match="calibrate"):
        device_from_json("file", value)
