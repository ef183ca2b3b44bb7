"""Measures what steps cost in a server that runs: by loads of its own, or by whatever it serves.

Loads are priced by the server's timings of their requests; what others send, by the server's own
record of its steps. So the costs hold all that serving adds to a step: planning, wires, delivery,
and whatever else shares the machine. Knows no files. Units: tokens, rows, seconds.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Iterator
from typing import Any

from blockyard.cluster.client import GenerationClient, Settings, build_request
from blockyard.scheduler.simulated.devices import Device
from blockyard.scheduler.simulated.measured_cost import StepSample, fit_cost

__all__ = ["UNKNOWN_LINK", "StepWatch", "calibrate_server", "measure_server", "watch_server"]

UNKNOWN_LINK = 10e9
"""Bytes a second to host memory, which a server's timings do not tell."""

_DECODES = 16
"""Steps that each load decodes: enough for those to weigh little in which not all take part."""

_PREFILLS = 2
"""How often each length of prompt is measured."""

_WATCH_SECONDS = 2.0
"""Between two questions: a server remembers the steps of half a minute and more."""

_LOWEST_TOKEN, _HIGHEST_TOKEN = 100, 900
"""Tokens that every vocabulary has."""


async def calibrate_server(
    address: str, max_running: int, max_step_tokens: int, rng: random.Random
) -> Device:
    """A device that costs what steps of the server at `address` cost.

    Its memory is what the server's books tell of: weights, the largest step and KV blocks. Raises
    like `measure_server`.
    """
    async with GenerationClient(address) as client:
        samples = await measure_server(client, max_running, max_step_tokens, rng)
        return await _device(client, samples)


async def watch_server(address: str, seconds: float) -> Device:
    """A device that costs what the steps cost that the server at `address` runs meanwhile.

    Nothing is sent to it: what it serves should be many steps of different sizes. Of several groups
    all steps are taken together.

    Raises:
        ValueError: too few different steps were run to tell anything.
        ServerError: it does not answer.
    """
    async with GenerationClient(address) as client:
        watch = StepWatch(client)
        await watch.collect()
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _WATCH_SECONDS))
            await watch.collect()
        return await _device(client, watch.samples)


class StepWatch:
    """Steps that a server has run since the first `collect`. Call it every few seconds."""

    def __init__(self, client: GenerationClient) -> None:
        self._client = client
        self._after: dict[str, int] = {}
        # Names of prompts come with the steps and are thrown away.
        self._salt = secrets.token_bytes(32)
        self.samples: list[StepSample] = []

    async def collect(self) -> None:
        """Take over what has been run since the last call. Raises `ServerError`."""
        answer = await self._client.arrivals(self._after, self._salt)
        self._after = dict(answer.next)
        for step in answer.steps:
            self.samples.append(
                StepSample(
                    step.tokens, step.rows, step.context_tokens, step.attended_pairs, step.seconds
                )
            )


async def _device(client: GenerationClient, samples: list[StepSample]) -> Device:
    group = (await client.ledger()).groups[0]
    if not group.sum.block_bytes:
        raise ValueError("the server does not know how many bytes its blocks have")
    known = group.sum.weight_bytes + group.sum.activation_bytes + group.sum.blocks.total
    cost = fit_cost(samples, group.sum.block_bytes, UNKNOWN_LINK)
    return Device(f"{group.device} serving {group.model}", known, cost)


async def measure_server(
    client: GenerationClient, max_running: int, max_step_tokens: int, rng: random.Random
) -> list[StepSample]:
    """Steps of different sizes, measured on a server of one group that has nothing else to do.

    Args:
        client: of the server.
        max_running, max_step_tokens: limits of its steps, which no load exceeds.
        rng: draws prompts that nobody has sent before.

    Raises:
        ValueError: the server has several groups, so nobody knows what ran together.
        ServerError: it does not answer.
    """
    books = await client.ledger()
    if len(books.groups) != 1:
        raise ValueError(f"the server has {len(books.groups)} groups; calibrate one of one group")
    await _ask(client, 16, 4, rng)  # the first steps pay for what is made once
    samples = []
    for prompt in _prompts(max_step_tokens):
        for _ in range(_PREFILLS):
            timings = await _ask(client, prompt, 1, rng)
            samples.append(StepSample.of((0,), (prompt,), timings.prefill_seconds))
    for requests, prompt in _loads(max_running, max_step_tokens):
        together = (_ask(client, prompt, _DECODES + 1, rng) for _ in range(requests))
        answers = await asyncio.gather(*together)
        # Who was let in last decodes beside all others and waits for nobody's prompt.
        seconds = min(timings.decode_seconds for timings in answers) / _DECODES
        starts = (prompt + _DECODES // 2,) * requests
        samples.append(StepSample.of(starts, (1,) * requests, seconds))
    return [sample for sample in samples if sample.seconds > 0]


def _prompts(max_step_tokens: int) -> list[int]:
    """Lengths of prompts that one step computes."""
    lengths = [length for length in (8, 16, 32, 64, 128, 256) if length < max_step_tokens]
    return [*lengths, min(512, max_step_tokens)]


def _loads(max_running: int, max_step_tokens: int) -> Iterator[tuple[int, int]]:
    """How many requests decode together, and how long their prompts are."""
    requests = 1
    while requests <= max_running:
        yield requests, 16
        # Longer contexts tell what reading them costs; four steps of prompts at most.
        if requests * 128 <= 4 * max_step_tokens:
            yield requests, 128
        requests *= 2
    if requests // 2 != max_running:
        yield max_running, 16


async def _ask(client: GenerationClient, prompt: int, output: int, rng: random.Random) -> Any:
    """The server's timings of one request with a prompt of its own."""
    tokens = [rng.randrange(_LOWEST_TOKEN, _HIGHEST_TOKEN) for _ in range(prompt)]
    settings = Settings(max_tokens=output, ignore_eos=True, temperature=1.0)
    answer = await client.generate(build_request(token_ids=tokens, settings=settings))
    return answer.timings
