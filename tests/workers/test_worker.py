"""The real worker on a tiny random Llama, against transformers run request by request."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.scheduler.plan import Admission, StepPlan
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.config import WorkerConfig, WorkerKind
from blockyard.workers.make_worker import make_worker
from blockyard.workers.worker import ModelWorker

Greedy = Callable[[list[int], int], list[int]]


def _prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300) for _ in range(length)]


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_mixed_steps_equal_separate_runs(
    make_scheduler: Callable[..., Any], greedy_reference: Greedy, block_size: int
) -> None:
    scheduler = make_scheduler(num_blocks=96, block_size=block_size)
    prompts = {f"r{length}": _prompt(length, length) for length in (1, 7, 16, 33, 150)}
    for name, prompt in prompts.items():
        scheduler.add(name, prompt)
    rng = random.Random(block_size)
    while unfinished := [name for name in prompts if len(scheduler.output(name)) < 12]:
        some = rng.sample(unfinished, rng.randint(1, len(unfinished)))
        scheduler.run(**{name: rng.choice([1, 5, 16, 64]) for name in some})
    for name, prompt in prompts.items():
        assert scheduler.output(name) == greedy_reference(prompt, 12), name


def test_chunks_larger_than_a_tile(
    make_scheduler: Callable[..., Any], greedy_reference: Greedy
) -> None:
    prompt = _prompt(3, 400)
    scheduler = make_scheduler()
    scheduler.add("long", prompt)
    scheduler.run(long=137)
    scheduler.run(long=400)
    scheduler.run(long=1)
    assert scheduler.output("long") == greedy_reference(prompt, 2)


def test_preempted_request_continues_in_other_blocks(
    make_scheduler: Callable[..., Any], greedy_reference: Greedy
) -> None:
    scheduler = make_scheduler(num_blocks=8)
    prompt, other = _prompt(4, 40), _prompt(5, 50)
    scheduler.add("victim", prompt)
    scheduler.add("other", other)
    for _ in range(5):
        scheduler.run(victim=64)
    scheduler.preempt("victim")
    for _ in range(6):
        scheduler.run(other=64)  # takes the victim's blocks over
    for _ in range(5):
        scheduler.run(victim=17, other=1)
    while len(scheduler.output("victim")) < 10:
        scheduler.run(victim=17)
    assert scheduler.output("victim") == greedy_reference(prompt, 10)
    assert scheduler.output("other") == greedy_reference(other, 11)


def test_stale_bytes_never_leak(
    make_scheduler: Callable[..., Any], greedy_reference: Greedy
) -> None:
    scheduler = make_scheduler()
    scheduler.worker._cache.blocks.fill_(float("nan"))
    prompts = {"one": _prompt(6, 5), "two": _prompt(7, 30)}
    for name, prompt in prompts.items():
        scheduler.add(name, prompt)
    for _ in range(8):
        result = scheduler.run(one=3, two=11)
        assert result.errors == ()
    for name, prompt in prompts.items():
        output = scheduler.output(name)
        assert output and output == greedy_reference(prompt, len(output))


def test_seeded_sampling_is_the_same_alone_batched_and_preempted(
    make_scheduler: Callable[..., Any],
) -> None:
    def sampling(index: int) -> SamplingParams:
        return SamplingParams(temperature=1.3, top_p=0.95, top_k=100, seed=index, max_tokens=9)

    prompts = [_prompt(seed, 10 + 7 * seed) for seed in range(4)]
    alone = []
    for index, prompt in enumerate(prompts):
        scheduler = make_scheduler()
        scheduler.add("x", prompt, sampling(index))
        for _ in range(9):
            scheduler.run(x=64)
        alone.append(scheduler.output("x"))
    together = make_scheduler()
    names = [f"r{index}" for index in range(4)]
    for index, name in enumerate(names):
        together.add(name, prompts[index], sampling(index))
    for step in range(9):
        if step == 4:
            together.preempt("r2")
        together.run(**dict.fromkeys(names, 64))
    assert [together.output(name) for name in names] == alone
    assert len({tuple(output) for output in alone}) == 4


def test_broken_row_fails_alone(make_scheduler: Callable[..., Any]) -> None:
    scheduler = make_scheduler()
    scheduler.add("good", _prompt(8, 4))
    scheduler.add("bad", _prompt(9, 4))
    scheduler.run(good=2, bad=4)
    block = scheduler._tables["bad"][0]
    scheduler.worker._cache.blocks[block, :, :, :, 1] = float("nan")  # a slot it does read
    result = scheduler.run(good=4, bad=1)
    assert [error.handle for error in result.errors] == [scheduler._handles["bad"]]
    assert "/" not in result.errors[0].message


def test_plan_that_computes_nothing(make_tiny_worker: Callable[..., ModelWorker]) -> None:
    worker = make_tiny_worker()
    admitted = (Admission(1, SamplingParams(), 3),)
    result = worker.execute(StepPlan(1, (), admitted, (), (), (), (), (), ()))
    assert (result.step, result.token_ids, result.errors) == (1, (), ())


def test_measured_profile(tiny_dir: Path) -> None:
    config = WorkerConfig(
        model_dir=str(tiny_dir), max_context_tokens=512, device="cpu", max_running=4, threads=1
    )
    profile = ModelWorker(config).load()
    assert profile.block_bytes == 2 * 2 * 2 * 16 * 16 * 4
    assert profile.max_blocks == 4 * 32  # all that four contexts of 512 can use
    weights = sum(path.stat().st_size for path in tiny_dir.glob("*.safetensors"))
    assert 0.9 * weights < profile.weight_bytes <= weights
    assert (profile.device, profile.dtype) == ("cpu", "float32")


def test_calls_out_of_order_are_named(tiny_dir: Path) -> None:
    config = WorkerConfig(model_dir=str(tiny_dir), max_context_tokens=64, device="cpu")
    worker = ModelWorker(config)
    with pytest.raises(RuntimeError, match="call load first"):
        worker.allocate(4)
    with pytest.raises(RuntimeError, match="call allocate first"):
        worker.execute(StepPlan(1, (), (), (), (), (), (), (), ()))


def test_split_models_and_missing_devices_are_refused(tiny_dir: Path) -> None:
    with pytest.raises(ValueError, match="device is 'tpu'"):
        ModelWorker(WorkerConfig(model_dir=str(tiny_dir), max_context_tokens=64, device="tpu"))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            ModelWorker(WorkerConfig(model_dir=str(tiny_dir), max_context_tokens=8, device="cuda"))


def test_factory_follows_the_kind(tiny_dir: Path) -> None:
    config = WorkerConfig(model_dir=str(tiny_dir), max_context_tokens=64, device="cpu")
    assert isinstance(make_worker(config), ModelWorker)
    witness = make_worker(
        WorkerConfig(
            model_dir=str(tiny_dir),
            max_context_tokens=64,
            kind=WorkerKind.WITNESS,
            num_blocks=4,
        )
    )
    assert type(witness).__name__ == "WitnessWorker"
