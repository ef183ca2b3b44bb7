"""O12 and O21 with swap forced, on a real model: plain blocks, int8 ones with their scales, and
moves that outlast the steps they were planned for."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.cluster.local_dispatcher import LocalDispatcher
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.workers.config import WorkerConfig
from blockyard.workers.description import describe_model
from blockyard.workers.move_lanes import Lane, Ticket, lanes_of
from blockyard.workers.worker import ModelWorker

POOL, HOST = 32, 96


@dataclass
class Swapping:
    """A group whose pool is too small for what is asked, and that may only swap."""

    dispatcher: LocalDispatcher
    service: GenerationService

    async def ask(self, prompt: list[int], **fields: Any) -> list[int]:
        sampling = pb.SamplingParameters(ignore_eos=True, **fields)
        response = await self.service.generate(
            pb.GenerateRequest(tokens=pb.TokenIds(ids=prompt), sampling=sampling)
        )
        return list(response.choices[0].token_ids)


class LateWork:
    """Work that is done when somebody must have it, or by chance when somebody looks."""

    def __init__(self, work: Callable[[], None], before: Sequence[Ticket]) -> None:
        self._work = work
        self._before = before
        self._over = False
        self._chance = random.Random(len(before))

    def done(self) -> bool:
        if not self._over and self._chance.random() < 0.2:
            self.wait()
        return self._over

    def wait(self) -> None:
        if not self._over:
            for ticket in self._before:
                ticket.wait()
            self._work()
            self._over = True

    hold = wait

    def seconds(self) -> float:
        return 0.001


class LateLane:
    """A lane that is behind; it keeps its own order, and no other."""

    def __init__(self) -> None:
        self._last: tuple[Ticket, ...] = ()

    def run(self, work: Callable[[], None], after: Sequence[Ticket]) -> Ticket:
        given = LateWork(work, (*self._last, *after))
        self._last = (given,)
        return given


def lanes(kind: str) -> Callable[[torch.device], tuple[Lane, Lane]]:
    return (lambda device: (LateLane(), LateLane())) if kind == "late" else lanes_of


@pytest.fixture
async def swapping(
    request: pytest.FixtureRequest, tiny_dir: Path, tiny_tokenizer: ModelTokenizer
) -> AsyncIterator[Swapping]:
    model = describe_model(tiny_dir, "tiny")
    worker = ModelWorker(
        WorkerConfig(
            str(tiny_dir),
            model.context_tokens,
            device="cpu",
            dtype="float32",
            kv_dtype="auto" if request.param == "late" else request.param,
            num_blocks=POOL,
            num_host_blocks=HOST,
            threads=1,
            max_step_tokens=64,
            max_running=16,
        ),
        make_lanes=lanes(request.param),
    )
    limits = SchedulerConfig(
        model.context_tokens,
        max_running=16,
        max_step_tokens=64,
        preemption=PreemptionPolicy.SWAP,
    )
    dispatcher = await LocalDispatcher.start(model, worker, limits)
    # No number, in floats and in scales: who reads a slot that nobody wrote is found out.
    cache: Any = worker._cache
    cache.pool.fill_(0xFF)
    cache.host_pool.fill_(0xFF)
    yield Swapping(dispatcher, GenerationService(dispatcher, {"tiny": tiny_tokenizer}))
    await dispatcher.engine.wait_idle()
    dispatcher.engine.check()
    await dispatcher.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("swapping", ["auto", "int8", "late"], indirect=True)
async def test_o12_the_right_bytes_come_back_under_load(swapping: Swapping) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(256) for _ in range(rng.randint(40, 60))] for _ in range(12)]
    alone = [await swapping.ask(prompt, max_tokens=60, temperature=0.0) for prompt in prompts]
    for _ in range(3):
        asking = [
            asyncio.create_task(swapping.ask(prompt, max_tokens=60, temperature=0.0))
            for prompt in prompts
        ]
        gone = set(rng.sample(range(len(asking)), 3))
        for number in gone:
            steps = swapping.dispatcher.engine.ledger().step + rng.randint(3, 40)
            while swapping.dispatcher.engine.ledger().step < steps:
                await asyncio.sleep(0.001)
            asking[number].cancel()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        for number, answer in enumerate(answers):
            if number not in gone:
                assert answer == alone[number], number
    preempted = swapping.dispatcher.engine.ledger().preempted
    assert preempted.swapped > 5 and preempted.blocks_in > 5


@pytest.mark.timeout(300)
@pytest.mark.parametrize("swapping", ["auto", "int8"], indirect=True)
async def test_o21_masks_in_a_mixed_batch_that_is_swapped(swapping: Swapping) -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0, "logit_bias": dict.fromkeys(range(200), -100.0)},
        {"top_k": 1, "seed": 1},
        {"top_p": 1e-9, "seed": 2},
        {"min_p": 1.0, "seed": 3},
        {"temperature": 2.0, "seed": 4},
        {"allowed_token_ids": [5, 6, 7], "seed": 5},
    ] * 2
    prompts = [[(53 * n + 7 * row) % 256 for n in range(40)] for row in range(len(kinds))]
    cases = list(zip(prompts, kinds, strict=True))
    alone = [await swapping.ask(prompt, max_tokens=60, **kind) for prompt, kind in cases]
    together = await asyncio.gather(
        *(swapping.ask(prompt, max_tokens=60, **kind) for prompt, kind in cases)
    )
    assert together == alone
    assert all(len(tokens) == 60 for tokens in alone)
    assert swapping.dispatcher.engine.ledger().preempted.swapped > 0
