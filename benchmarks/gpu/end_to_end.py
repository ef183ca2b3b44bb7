"""Tokens a second of whole models with random weights, beside transformers with the same weights.

Blockyard's engine, scheduler and worker in this process, without Ray and without a wire.
"""

import asyncio
import gc
import time
from dataclasses import replace
from typing import Any

import torch
from child import Context
from sizes import ModelShape, Serving
from transformers import AutoModelForCausalLM, LlamaConfig

from blockyard.cluster.engine import Engine
from blockyard.cluster.local_group import LocalGroup
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.attention import ATTENTION_NAME
from blockyard.workers.config import WorkerConfig, WorkerProfile
from blockyard.workers.loader import register_attention
from blockyard.workers.model import DecoderModel
from blockyard.workers.worker import ModelWorker

__all__ = ["eight_billion", "one_billion", "random_model"]

_STEP_TOKENS = 2048
_MARGIN_TOKENS = 16


def one_billion(context: Context) -> None:
    """A Llama of about 1 billion weights."""
    _measure(context, context.sizes.one_billion)


def eight_billion(context: Context) -> None:
    """A Llama of about 8 billion weights."""
    _measure(context, context.sizes.eight_billion)


class _Loaded:
    """An `Executor` whose model is in memory already."""

    def __init__(self, worker: ModelWorker, model: DecoderModel) -> None:
        self._worker = worker
        self._model = model

    def load(self) -> WorkerProfile:
        return self._worker.adopt(self._model)

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        self._worker.allocate(num_blocks, num_host_blocks)

    def execute(self, plan: StepPlan) -> StepResult:
        return self._worker.execute(plan)


def _measure(context: Context, shape: ModelShape) -> None:
    servings = context.sizes.servings
    most = max(serving.prompt + serving.answer for serving in servings) + _MARGIN_TOKENS
    model = random_model(context, shape, most)
    weights = sum(parameter.numel() for parameter in model.parameters())
    for serving in servings:
        if context.out_of_time(1):
            return
        row = {"weights": weights, "requests": serving.requests, "prompt": serving.prompt}
        row["answer"] = serving.answer
        model.set_attn_implementation("sdpa")
        _fenced(context, row | {"path": "transformers, SDPA"}, _transformers, model, serving)
        register_attention()
        model.set_attn_implementation(ATTENTION_NAME)
        worker = (context, DecoderModel(model, most), serving, most)
        _fenced(context, row | {"path": "blockyard, eager"}, _blockyard, *worker, "off")
        path = row | {"path": "blockyard, CUDA graphs"}
        if context.device.emulated:
            context.row(**path, state="a rehearsal captures none")
        else:
            _fenced(context, path, _blockyard, *worker, "auto")
        gc.collect()


def _fenced(context: Context, row: dict[str, Any], run: Any, *arguments: Any) -> None:
    """One side's failure must not take the other's number away."""
    try:
        context.row(**row, **run(*arguments))
    except Exception as error:
        context.row(**row, failed=f"{type(error).__name__}: {error}"[:600])
        if not context.device.alive():
            raise


def random_model(context: Context, shape: ModelShape, most: int) -> Any:
    """A Llama of transformers with random weights, for contexts up to `most`."""
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads.heads,
        num_key_value_heads=shape.heads.kv_heads,
        head_dim=shape.heads.dim,
        max_position_embeddings=max(most, 128),
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    build: Any = AutoModelForCausalLM.from_config
    with torch.device(context.device.torch_device):
        model = build(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    return model.eval().requires_grad_(False)


def _prompts(serving: Serving, vocabulary: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(0, vocabulary, (serving.requests, serving.prompt), generator=random)


def _transformers(model: Any, serving: Serving) -> dict[str, Any]:
    prompts = _prompts(serving, model.config.vocab_size).to(model.device)

    def generate(answer: int) -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                input_ids=prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=False,
                max_new_tokens=answer,
                min_new_tokens=answer,
                pad_token_id=0,
            ).cpu()
        return time.perf_counter() - began

    generate(2)  # compiles what has to be
    return _rates(serving, generate(1), generate(serving.answer))


def _blockyard(
    context: Context, model: DecoderModel, serving: Serving, most: int, cuda_graphs: str
) -> dict[str, Any]:
    blocks = serving.requests * (-(-most // 16) + 1)
    config = WorkerConfig(
        "",
        most,
        device=context.device.torch_device.type,
        backend="emulator" if context.device.emulated else "kernels",
        cuda_graphs=cuda_graphs,
        num_blocks=blocks,
        num_host_blocks=0,
        max_step_tokens=_STEP_TOKENS,
        max_running=serving.requests,
    )
    executor = _Loaded(ModelWorker(config), model)
    prompts = [tuple(row) for row in _prompts(serving, model.vocab_size).tolist()]

    async def serve() -> dict[str, Any]:
        group = LocalGroup(executor)
        await group.load()
        limits = SchedulerConfig(
            most, max_running=serving.requests, max_step_tokens=_STEP_TOKENS, pipeline_depth=2
        )
        produced = 0

        def deliver(updates: list[RequestUpdate]) -> None:
            nonlocal produced
            produced += sum(len(update.token_ids) for update in updates)

        engine = Engine(Scheduler(limits, blocks), group, deliver)

        async def run(name: str, answer: int) -> float:
            sampling = SamplingParams(max_tokens=answer, temperature=0.0)
            began = time.perf_counter()
            for number, prompt in enumerate(prompts):
                spec = RequestSpec(f"{name}{number}", prompt, sampling)
                engine.submit(replace(spec, use_prefix_cache=False))
            while await engine.step():
                pass
            return time.perf_counter() - began

        try:
            await run("warm", 2)
            first = await run("first", 1)
            produced = 0
            seconds = await run("timed", serving.answer)
            if produced != serving.requests * serving.answer:
                raise RuntimeError(f"{produced} tokens came, of {serving.requests} requests")
        finally:
            await group.close()
        return _rates(serving, first, seconds)

    return asyncio.run(serve())


def _rates(serving: Serving, first: float, seconds: float) -> dict[str, Any]:
    """All tokens by all seconds, and those after the first of each by what they took alone."""
    after = serving.requests * (serving.answer - 1)
    return {
        "first_tokens_s": round(first, 4),
        "seconds": round(seconds, 4),
        "tokens_per_s": round(serving.requests * serving.answer / seconds, 1),
        "decode_tokens_per_s": round(after / max(seconds - first, 1e-9), 1),
    }
