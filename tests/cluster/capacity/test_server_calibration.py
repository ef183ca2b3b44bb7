"""Costs measured through a server's own timings: here of a server that is made of a cost model."""

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from blockyard.cluster.capacity.server_calibration import StepWatch, measure_server
from blockyard.cluster.cli import app
from blockyard.scheduler.simulated.measured_cost import MeasuredCost, StepSample, fit_cost

TRUE = MeasuredCost((1, 8, 64, 512), (0.01, 0.012, 0.02, 0.1), 0.0005, 2e-6, 0.0, 4096, 1e9)


class Server:
    """Tells of each request what it would have taken beside all that came at the same time."""

    def __init__(self, groups: int = 1) -> None:
        self.groups = groups
        self.asked: list[tuple[int, int, int]] = []
        self._together: list[Any] = []

    async def ledger(self) -> Any:
        return SimpleNamespace(groups=[SimpleNamespace()] * self.groups)

    async def generate(self, request: Any) -> Any:
        self._together.append(request)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rows = len(self._together)
        prompt, output = len(request.tokens.ids), request.sampling.max_tokens
        self.asked.append((rows, prompt, output))
        steps = [
            TRUE.decode_seconds(rows, rows * (prompt + 1 + step)) for step in range(output - 1)
        ]
        prefill = TRUE.compute_seconds([0], [prompt])
        if request is self._together[-1]:
            self._together.clear()
        return SimpleNamespace(
            timings=SimpleNamespace(prefill_seconds=prefill, decode_seconds=sum(steps))
        )


async def test_the_costs_of_a_server_are_found_from_its_timings() -> None:
    server: Any = Server()
    samples = await measure_server(server, 12, 512, random.Random(1))
    found = fit_cost(samples, 4096, 1e9)
    for rows, context in ((1, 40), (4, 400), (12, 800)):
        exact = TRUE.decode_seconds(rows, context)
        assert found.decode_seconds(rows, context) == pytest.approx(exact, rel=0.05)
    for tokens in (64, 300, 512):
        exact = TRUE.compute_seconds([0], [tokens])
        assert found.compute_seconds([0], [tokens]) == pytest.approx(exact, rel=0.1)
    assert {rows for rows, _, output in server.asked if output > 4} == {1, 2, 4, 8, 12}
    assert max(prompt for _, prompt, _ in server.asked) == 512
    assert max(rows * prompt for rows, prompt, _ in server.asked) <= 4 * 512


async def test_costs_are_found_from_steps_that_ran_for_others() -> None:
    rng = random.Random(3)

    def step() -> Any:
        rows = rng.choice((1, 4, 8, 30))
        starts = [rng.randrange(900) for _ in range(rows)]
        counts = [1] * rows
        if rng.random() < 0.3:
            starts.append(0)
            counts.append(rng.choice((60, 500)))
        sample = StepSample.of(starts, counts, TRUE.compute_seconds(starts, counts))
        return SimpleNamespace(
            rows=sample.rows,
            tokens=sample.tokens,
            context_tokens=sample.read,
            attended_pairs=sample.attended,
            seconds=sample.seconds,
        )

    class Recorder:
        """Refuses who does not ask on from where the last answer ended."""

        async def arrivals(self, after: dict[str, int], salt: bytes) -> Any:
            assert len(salt) >= 16
            number = after.get("g", 0)
            assert number == len(watch.samples) // 50
            return SimpleNamespace(next={"g": number + 1}, steps=[step() for _ in range(50)])

    client: Any = Recorder()
    watch = StepWatch(client)
    for _ in range(8):
        await watch.collect()
    found = fit_cost(watch.samples, 4096, 1e9)
    for rows, context in ((1, 40), (4, 400), (30, 9000)):
        exact = TRUE.decode_seconds(rows, context)
        assert found.decode_seconds(rows, context) == pytest.approx(exact, rel=0.05)
    assert found.compute_seconds([0], [500]) == pytest.approx(
        TRUE.compute_seconds([0], [500]), rel=0.05
    )


async def test_two_groups_cannot_be_told_apart() -> None:
    server: Any = Server(2)
    with pytest.raises(ValueError, match="2 groups"):
        await measure_server(server, 8, 512, random.Random(1))


def test_only_a_server_can_be_watched(tmp_path: Path) -> None:
    output = tmp_path / "device.json"
    ran = CliRunner().invoke(app, ["calibrate", str(output), "--watch", "5"])
    assert ran.exit_code == 2
    assert "--address" in ran.stderr
    assert not output.exists()
