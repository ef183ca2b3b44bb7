"""Adapters of a real model in this process: through sleep, other weights, and its one-line API."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import blockyard
from blockyard.cluster.local_dispatcher import LocalDispatcher
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.config import SchedulerConfig
from blockyard.workers.adapter_description import AdapterRefused, describe_adapter
from blockyard.workers.config import WorkerConfig
from blockyard.workers.description import describe_model
from blockyard.workers.fake import witness_generate
from blockyard.workers.worker import ModelWorker

PROMPT = [(37 * n + 11) % 256 for n in range(40)]


def reference(model: Any, count: int, prompt: Sequence[int] = PROMPT) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
    )
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


async def test_o05_adapters_outlast_sleep_and_what_is_lost_meanwhile_is_told(
    tiny_dir: Path,
    tiny_model: LlamaForCausalLM,
    tiny_tokenizer: ModelTokenizer,
    tmp_path: Path,
    make_adapter: Callable[..., Any],
) -> None:
    config = WorkerConfig(
        str(tiny_dir), 256, device="cpu", num_blocks=64, num_host_blocks=0, threads=1,
        max_step_tokens=64, max_running=16, max_adapters=2,
    )  # fmt: skip

    def make(model_dir: str) -> ModelWorker:
        return ModelWorker(replace(config, model_dir=model_dir))

    model = describe_model(tiny_dir, "tiny")
    limits = SchedulerConfig(256, max_running=16, max_step_tokens=64)
    dispatcher = await LocalDispatcher.start(model, make(str(tiny_dir)), limits)
    service = GenerationService(dispatcher, {"tiny": tiny_tokenizer})
    rest = dispatcher.rest(make)

    async def ask(name: str, count: int) -> pb.GenerateResponse:
        sampling = pb.SamplingParameters(ignore_eos=True, temperature=0.0, max_tokens=count)
        tokens = pb.TokenIds(ids=PROMPT)
        return await service.generate(
            pb.GenerateRequest(model=name, tokens=tokens, sampling=sampling)
        )

    merged = {}
    for seed, name in enumerate("ab"):
        merged[name] = make_adapter(tmp_path / name, tiny_model, seed, rank=4)
        await dispatcher.load_adapter("tiny", describe_adapter(tmp_path / name, name, 16))
    asked = [asyncio.create_task(ask(name, 100)) for name in ("a", "b", "tiny")]
    while dispatcher.engine.ledger().step < 8:
        await asyncio.sleep(0.001)
    await rest.sleep()
    make_adapter(tmp_path / "b", tiny_model, 7)  # other files under the same name
    await rest.wake()
    first, second, base = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(first, pb.GenerateResponse) and isinstance(base, pb.GenerateResponse)
    assert list(first.choices[0].token_ids) == reference(merged["a"], 100)
    assert list(base.choices[0].token_ids) == reference(tiny_model, 100)
    assert "could not be loaded again" in str(second)
    assert [each.name for each in dispatcher.adapters("tiny")] == ["a"]
    assert (await ask("a", 5)).model == "a"
    await dispatcher.close()


def test_one_model_in_this_process_takes_adapters(
    tmp_path: Path, tiny_model: LlamaForCausalLM, make_adapter: Callable[..., Any]
) -> None:
    for seed, name in enumerate("ab"):
        make_adapter(tmp_path / name, tiny_model, seed)
    settings = blockyard.Settings(max_tokens=5, ignore_eos=True)
    with blockyard.LLM(
        "witness", num_blocks=64, adapters={"a": tmp_path / "a"}, max_adapters=2
    ) as llm:
        llm.load_adapter("b", tmp_path / "b")
        answers = llm.generate([PROMPT] * 3, settings, adapter=["a", "", "b"])
        for name, answer in zip(("a", "", "b"), answers, strict=True):
            used = describe_adapter(tmp_path / name, name, 16).adapter_id if name else ""
            assert list(answer.token_ids) == witness_generate(PROMPT, 5, 259, adapter=used)
        llm.unload_adapter("a")
        with pytest.raises(Exception, match="'a' is not served here; served: witness, b"):
            llm.generate([PROMPT], settings, adapter="a")
        with pytest.raises(AdapterRefused, match="holds no"):
            llm.load_adapter("c", tmp_path)
        with pytest.raises(ValueError, match="zip"):
            llm.generate([PROMPT], settings, adapter=["a", "b"])
