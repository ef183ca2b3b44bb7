"""O05 for the model's own weights: sleep, wake and other weights, with requests under way."""

import asyncio
import shutil
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from blockyard.cluster.group import GroupLost
from blockyard.cluster.http.chat_answer import ChatChunks, chat_completion
from blockyard.cluster.http.completion_answer import completion
from blockyard.cluster.local_dispatcher import LocalDispatcher
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.request.whole_answer import WholeAnswer
from blockyard.cluster.resting import Rest, Weights, WeightsNotLoaded
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.config import SchedulerConfig
from blockyard.workers.config import WorkerConfig
from blockyard.workers.description import ModelFilesError, describe_model
from blockyard.workers.worker import ModelWorker

PROMPT = [(37 * n + 11) % 256 for n in range(40)]
Told = pb.GenerateResponse


@dataclass
class Sleeper:
    """A model in this process that can be put to rest."""

    dispatcher: LocalDispatcher
    service: GenerationService
    rest: Rest
    workers: list["weakref.ref[ModelWorker]"] = field(default_factory=list)

    async def ask(self, prompt: list[int] = PROMPT, **fields: Any) -> Told:
        sampling = pb.SamplingParameters(ignore_eos=True, temperature=0.0, **fields)
        return await self.service.generate(
            pb.GenerateRequest(tokens=pb.TokenIds(ids=prompt), sampling=sampling)
        )

    async def steps(self, count: int) -> None:
        """Wait until so many steps have run."""
        ledger = self.dispatcher.engine.ledger
        end = ledger().step + count
        async with asyncio.timeout(60):
            while ledger().step < end:
                await asyncio.sleep(0.001)


def _tokens(answer: Told) -> list[int]:
    return list(answer.choices[0].token_ids)


@pytest.fixture(scope="module")
def other_dir(
    tiny_dir: Path, tiny_model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Other weights of the same shape."""
    folder = tmp_path_factory.mktemp("other")
    shutil.copytree(tiny_dir, folder, dirs_exist_ok=True)
    torch.manual_seed(8)
    other = LlamaForCausalLM(tiny_model.config)
    other.save_pretrained(folder)
    return folder


@pytest.fixture
async def sleeper(tiny_dir: Path, tiny_tokenizer: ModelTokenizer) -> AsyncIterator[Sleeper]:
    workers: list[weakref.ref[ModelWorker]] = []
    config = WorkerConfig(
        str(tiny_dir),
        256,
        device="cpu",
        dtype="float32",
        num_blocks=64,
        num_host_blocks=0,
        threads=1,
        max_step_tokens=64,
        max_running=16,
    )

    def make(model_dir: str) -> ModelWorker:
        worker = ModelWorker(replace(config, model_dir=model_dir))
        workers.append(weakref.ref(worker))
        return worker

    model = describe_model(tiny_dir, "tiny")
    limits = SchedulerConfig(256, max_running=16, max_step_tokens=64)
    dispatcher = await LocalDispatcher.start(model, make(str(tiny_dir)), limits)
    service = GenerationService(dispatcher, {"tiny": tiny_tokenizer})
    yield Sleeper(dispatcher, service, dispatcher.rest(make), workers)
    if dispatcher.engine.lost is None and not dispatcher.engine.succession.wanted:
        dispatcher.engine.check()
    await dispatcher.close()


async def test_o05_sleep_keeps_requests_and_frees_the_model(sleeper: Sleeper) -> None:
    other = PROMPT[::-1]
    expected = [_tokens(await sleeper.ask(p, max_tokens=60)) for p in (PROMPT, other)]
    begun = asyncio.create_task(sleeper.ask(max_tokens=60))
    await sleeper.steps(10)
    await sleeper.rest.sleep()
    assert sleeper.rest.asleep
    (worker,) = sleeper.workers
    assert worker() is None  # and with it its weights and blocks
    books = sleeper.dispatcher.engine.ledger()
    assert books.blocks.free == books.blocks.total  # nobody holds what is not there
    assert (books.requests.running, books.requests.waiting) == (0, 1)
    step = books.step
    waits = asyncio.create_task(sleeper.ask(other, max_tokens=60))
    leaves = asyncio.create_task(sleeper.ask(other, max_tokens=50))
    while sleeper.dispatcher.engine.num_requests < 3:
        await asyncio.sleep(0.001)
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    assert sleeper.dispatcher.engine.ledger().step == step
    assert sleeper.dispatcher.engine.stalled_seconds() == 0  # it is well, and sleeps
    with pytest.raises(RuntimeError, match="sleeps already"):
        await sleeper.rest.sleep()
    assert not begun.done() and not waits.done()
    await sleeper.rest.wake()
    assert [_tokens(await begun), _tokens(await waits)] == expected
    with pytest.raises(RuntimeError, match="does not sleep"):
        await sleeper.rest.wake()


async def test_o05_nothing_of_old_weights_is_found(sleeper: Sleeper, other_dir: Path) -> None:
    tiny_dir = sleeper.dispatcher.models()[0].directory
    old = await sleeper.ask(max_tokens=20)
    assert (await sleeper.ask(max_tokens=20)).usage.cached_tokens == 32
    await sleeper.rest.update(Weights(str(other_dir), "2"))
    new = await sleeper.ask(max_tokens=20)
    assert new.usage.cached_tokens == 0
    model: Any = LlamaForCausalLM.from_pretrained(other_dir, dtype=torch.float32)
    known = torch.tensor([PROMPT])
    cold = model.generate(known, max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert _tokens(new) == cold[0, len(PROMPT) :].tolist()
    assert (await sleeper.ask(max_tokens=20)).usage.cached_tokens == 32
    # The same from sleep, and back.
    await sleeper.rest.sleep()
    await sleeper.rest.update(Weights(tiny_dir, "3"))
    back = await sleeper.ask(max_tokens=20)
    assert (_tokens(back), back.usage.cached_tokens) == (_tokens(old), 0)


async def test_o05_a_request_across_the_change_keeps_its_tokens_and_goes_on(
    sleeper: Sleeper, other_dir: Path
) -> None:
    old = _tokens(await sleeper.ask(max_tokens=60))
    begun = asyncio.create_task(sleeper.ask(max_tokens=60))
    await sleeper.steps(12)
    await sleeper.rest.update(Weights(str(other_dir), "2"))
    told = await begun
    tokens = _tokens(told)
    kept = next(n for n in range(60) if tokens[n] != old[n])
    assert kept >= 8
    # What follows is what the new weights say after the tokens that are kept.
    rest = await sleeper.ask([*PROMPT, *tokens[:kept]], max_tokens=60 - kept)
    assert _tokens(rest) == tokens[kept:]
    # And the answer says so; one that was begun after the change has one version alone.
    assert list(told.weight_versions) == list(told.choices[0].weight_versions) == ["started", "2"]
    assert chat_completion(told, 0)["system_fingerprint"] == "started+2"
    assert list(rest.weight_versions) == ["2"]
    assert completion([rest], 1, 0)["system_fingerprint"] == "2"


async def test_o05_a_stream_says_where_other_weights_went_on(
    sleeper: Sleeper, other_dir: Path
) -> None:
    """Of two answers to one prompt; each piece names what made its tokens and none before."""
    sampling = pb.SamplingParameters(ignore_eos=True, seed=3, n=2, max_tokens=50)
    request = pb.GenerateRequest(tokens=pb.TokenIds(ids=PROMPT), sampling=sampling)
    pieces, whole = ChatChunks(0, include_usage=False), WholeAnswer()
    told: dict[int, list[tuple[int, list[str]]]] = {0: [], 1: []}
    marks: list[str | None] = []
    changing: asyncio.Task[None] | None = None
    async for chunk in sleeper.service.stream(request):
        whole.add(chunk)
        told[chunk.choice].append((len(chunk.token_ids), list(chunk.weight_versions)))
        marks += [piece["system_fingerprint"] for piece in pieces.pieces(chunk)]
        if changing is None and sum(count for count, _ in told[0]) > 8:
            changing = asyncio.create_task(sleeper.rest.update(Weights(str(other_dir), "2")))
    assert changing is not None
    await changing
    for own in told.values():
        assert [names for _, names in own if names] == [["started"], ["2"]]
        assert own[0] == (1, ["started"])
    assert marks[0] == "started" and marks[-1] == "started+2"
    assert list(whole.response().weight_versions) == ["started", "2"]


async def test_o05_a_search_across_the_change_begins_anew_and_says_so(
    sleeper: Sleeper, other_dir: Path
) -> None:
    sampling = pb.SamplingParameters(n=1, beam_width=2, max_tokens=40)
    request = pb.GenerateRequest(tokens=pb.TokenIds(ids=PROMPT), sampling=sampling)
    begun = asyncio.create_task(sleeper.service.generate(request))
    await sleeper.steps(8)
    await sleeper.rest.update(Weights(str(other_dir), "2"))
    told, anew = await begun, await sleeper.service.generate(request)
    assert _tokens(told) == _tokens(anew)
    assert list(told.weight_versions) == ["2"]


@pytest.mark.parametrize("asleep", [False, True])
async def test_weights_of_another_shape_are_refused_and_nothing_changes(
    sleeper: Sleeper, other_dir: Path, tmp_path: Path, asleep: bool
) -> None:
    expected = _tokens(await sleeper.ask(max_tokens=8))
    shutil.copytree(other_dir, tmp_path, dirs_exist_ok=True)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        config.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-03')
    )
    if asleep:
        await sleeper.rest.sleep()
    with pytest.raises(ValueError, match=r"another shape: rms_norm_eps is 0\.001"):
        await sleeper.rest.update(Weights(str(tmp_path), "2"))
    with pytest.raises(ModelFilesError, match=r"config\.json cannot be read"):
        await sleeper.rest.update(Weights(str(tmp_path / "nowhere"), "2"))
    if asleep:
        await sleeper.rest.wake()
    assert _tokens(await sleeper.ask(max_tokens=8)) == expected


async def test_weights_that_cannot_be_loaded_leave_those_it_had(
    sleeper: Sleeper, other_dir: Path, tmp_path: Path
) -> None:
    expected = _tokens(await sleeper.ask(max_tokens=60))
    begun = asyncio.create_task(sleeper.ask(max_tokens=60))
    await sleeper.steps(10)
    shutil.copytree(other_dir, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(WeightsNotLoaded, match="goes on with those it had"):
        await sleeper.rest.update(Weights(str(tmp_path), "2"))
    assert not sleeper.rest.asleep
    assert sleeper.rest.weights.directory == sleeper.dispatcher.models()[0].directory
    assert _tokens(await begun) == expected
    await sleeper.rest.update(Weights(str(other_dir), "3"))
    assert sleeper.rest.weights == Weights(str(other_dir), "3")


async def test_a_model_that_cannot_be_loaded_again_loses_the_engine(
    sleeper: Sleeper, other_dir: Path, tmp_path: Path
) -> None:
    shutil.copytree(other_dir, tmp_path, dirs_exist_ok=True)
    await sleeper.rest.update(Weights(str(tmp_path), "2"))
    await sleeper.rest.sleep()
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(GroupLost, match=r"holds no \*.safetensors"):
        await sleeper.rest.wake()
    await sleeper.dispatcher.engine.wait_idle()
    assert "no group could take" in (sleeper.dispatcher.engine.lost or "")
