"""One rank: loads the model, owns its blocks, executes plans.

A plain class; whoever starts it decides in which process it lives. Calls come one at a time.
Units: tokens, blocks, bytes, seconds.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from blockyard.cuda.backend import AttentionBackend
from blockyard.cuda.reference import ReferenceBackend
from blockyard.scheduler.plan import NOTHING_LEFT, RowError, StepPlan, StepResult
from blockyard.workers.adapter_description import AdapterDescription
from blockyard.workers.adapters import AdapterBank
from blockyard.workers.attention import CachedAttention
from blockyard.workers.backend_choice import choose_backend
from blockyard.workers.backends import resolve_device
from blockyard.workers.batch import BatchBuilder, FlatBatch
from blockyard.workers.collectives import Communicator
from blockyard.workers.config import Executor, WorkerConfig, WorkerKind, WorkerProfile
from blockyard.workers.description import describe_model
from blockyard.workers.grammar import grammars_of, prepare_masks
from blockyard.workers.guesses import reached, rules_ahead
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_dtype import resolve_kv_dtype
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.kv_scales import settle_head_scales
from blockyard.workers.memory import count_blocks, count_host_blocks, measure_peak
from blockyard.workers.model import DecoderModel
from blockyard.workers.profiling import largest_batch, measure_link, measure_prefill
from blockyard.workers.progress import ProgressReporter, SilentProgress
from blockyard.workers.prompt_scores import score_prompts
from blockyard.workers.sampler import grammars_ahead, sample

__all__ = ["ModelWorker", "make_worker"]

_NO_FINITE_SCORE = "no token can be chosen: the model gave scores that are no numbers"


class ModelWorker:
    """An `Executor` that runs a real model, or its rank's part of one.

    Args:
        config: what to load and run.
        progress: told of the load.
        communicator: this rank's end of its group, joined by others before the first step; None
            makes one, for a rank that is alone.

    Raises:
        ValueError: a device that this machine lacks.
    """

    def __init__(
        self,
        config: WorkerConfig,
        progress: ProgressReporter | None = None,
        communicator: Communicator | None = None,
    ) -> None:
        self._config = config
        self._communicator = communicator or Communicator(config.rank, config.world_size)
        self._progress = progress if progress is not None else SilentProgress()
        self._device = resolve_device(config.device)
        self._backend: AttentionBackend = ReferenceBackend()
        self._model: DecoderModel | None = None
        self._cache: KVCache | None = None
        self._batches: BatchBuilder | None = None
        self._adapters: AdapterBank | None = None

    def load(self) -> WorkerProfile:
        """Load the model and measure what is left for blocks; see `Executor`.

        Raises:
            ModelFilesError, UnsupportedModel: the model cannot be loaded or served.
            NoRoom: the memory allowed does not hold one context.
        """
        # Imported here, because transformers takes seconds and the witness never needs it.
        from blockyard.workers.loader import load_model

        config = self._config
        torch.set_num_threads(self._threads)
        return self.adopt(
            load_model(
                Path(config.model_dir),
                self._device,
                config.dtype,
                config.max_context_tokens,
                self._progress,
                self._communicator,
            )
        )

    def adopt(self, model: DecoderModel) -> WorkerProfile:
        """Take a model that is on the device already, and measure what is left for blocks.

        Raises:
            UnsupportedModel, NoRoom: see `load`.
        """
        config = self._config
        self._model = model
        geometry = self._geometry(model)
        self._backend = choose_backend(config, model, geometry, self._threads)
        self._adapters = self._make_bank(model)
        self._progress.stage("measuring steps", None)
        activation_bytes = 0
        if config.num_blocks is not None:
            blocks = config.num_blocks
        else:
            activation_bytes = self._measure_peak(model, geometry)
            beside = activation_bytes + self._adapters.most_bytes
            blocks = count_blocks(config, geometry.block_bytes, beside, self._device)
        host_blocks = count_host_blocks(config, geometry.block_bytes, blocks, self._device)
        return WorkerProfile(
            max_blocks=blocks,
            block_bytes=geometry.block_bytes,
            weight_bytes=model.weight_bytes,
            activation_bytes=activation_bytes,
            device=str(self._device),
            dtype=str(model.dtype).removeprefix("torch."),
            max_host_blocks=host_blocks,
            prefill_tokens_per_second=self._measure_prefill(model, geometry),
            link_bytes_per_second=(
                measure_link(geometry, min(blocks, host_blocks), self._device)
                if host_blocks
                else 0.0
            ),
        )

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Make the pools; see `Executor`."""
        model = self._loaded()
        self._cache = None  # its memory is needed
        self._cache = KVCache(
            self._geometry(model), num_blocks, self._device, num_host_blocks, self._backend.mover
        )
        self._batches = BatchBuilder(
            num_blocks,
            self._config.block_size,
            model.vocab_size,
            self._device,
            grammars_of(Path(self._config.model_dir), model.vocab_size),
            self._communicator,
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step; see `Executor`.

        Raises:
            PlanError: the plan contradicts the ones before it.
            ValueError: it moves blocks that the pools do not have.
        """
        if self._cache is None or self._batches is None:
            raise RuntimeError("a plan came before the pool was made; call allocate first")
        if not self._communicator.joined:
            raise RuntimeError("a plan came before the ranks met; have them join a group first")
        settle_head_scales(self._cache, self._loaded(), self._config)
        began = time.perf_counter()
        batch = self._batches.apply(plan)
        copy_seconds = self._cache.move(plan.swap_outs, plan.copies, plan.swap_ins)
        result = StepResult(plan.step, (), copy_seconds=copy_seconds)
        if batch is not None:
            with torch.inference_mode():
                result = self._compute(self._loaded(), self._cache, batch, result)
            if not self._communicator.rank:
                self._batches.note_sampled(batch, result.token_ids)
        seconds = time.perf_counter() - began
        return replace(result, compute_seconds=seconds - copy_seconds)

    def load_adapter(self, adapter: AdapterDescription) -> None:
        """Have an adapter ready for steps to come; see `Executor`.

        Raises:
            AdapterRefused: it cannot be served.
        """
        self._bank().load(adapter)

    def drop_adapter(self, adapter_id: str) -> None:
        """Forget an adapter; see `Executor`."""
        self._bank().drop(adapter_id)

    def _compute(
        self, model: DecoderModel, cache: KVCache, batch: FlatBatch, result: StepResult
    ) -> StepResult:
        """Run the model and sample; `result` with what came out."""
        rows = batch.sample_rows
        if not self._communicator.rank:
            for known in batch.rule_tokens:
                known.rules.record(known.position, known.token_ids)
            rows = rules_ahead(rows, batch.guessed)
            prepare_masks(grammars_ahead(rows, model.vocab_size, self._device))
        attention = CachedAttention(cache, self._backend.begin(batch.attention))
        adapted = self._bank().rows(batch.adapters, batch.attention.counts)
        logits = model.forward(
            batch.input_ids, batch.positions, batch.sample_tokens, attention, adapted
        )
        if self._communicator.rank:
            return result  # rank 0 alone has all logits
        computed = time.perf_counter()
        prompt_logprobs = score_prompts(logits, batch.prompt_rows, self._backend.sampler)
        if batch.sample_logits is not None:
            logits = logits[batch.sample_logits]
        sampled = reached(sample(logits[: len(rows)], rows, self._backend.sampler), batch.guessed)
        errors = tuple(
            RowError(
                batch.sample_handles[row],
                NOTHING_LEFT if row in sampled.emptied else _NO_FINITE_SCORE,
            )
            for row in sampled.failed
        )
        return replace(
            result,
            token_ids=sampled.token_ids,
            errors=errors,
            logprobs=sampled.logprobs,
            prompt_logprobs=prompt_logprobs,
            sample_seconds=time.perf_counter() - computed,
        )

    def _measure_peak(self, model: DecoderModel, geometry: KVGeometry) -> int:
        """Peak bytes of the largest step, run on a pool of one block that all requests share."""
        batch = largest_batch(self._config, model.vocab_size, self._device)
        run = self._runner(model, geometry)
        return measure_peak(lambda: run(batch), self._device)

    def _measure_prefill(self, model: DecoderModel, geometry: KVGeometry) -> float:
        return measure_prefill(self._config, self._device, self._runner(model, geometry))

    def _runner(self, model: DecoderModel, geometry: KVGeometry) -> Callable[[FlatBatch], None]:
        """Runs batches on a cleared pool of one block."""
        cache = KVCache(geometry, 1, self._device)
        cache.clear()

        def run(batch: FlatBatch) -> None:
            with torch.inference_mode():
                self._compute(model, cache, batch, StepResult(0, ()))

        return run

    def _geometry(self, model: DecoderModel) -> KVGeometry:
        shape = model.attention
        return KVGeometry(
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            block_size=self._config.block_size,
            dtype=resolve_kv_dtype(self._config, model.dtype, self._device),
        )

    @property
    def _threads(self) -> int:
        cores = len(os.sched_getaffinity(0))
        return self._config.threads or max(1, cores // self._config.world_size)

    def _make_bank(self, model: DecoderModel) -> AdapterBank:
        config = self._config
        bank = AdapterBank(
            model.module,
            model.sites,
            config.max_adapters,
            config.max_adapter_rank,
            model.dtype,
            model.device,
        )
        model.adapt(bank)
        return bank

    def _bank(self) -> AdapterBank:
        if self._adapters is None:
            raise RuntimeError("the model is not loaded; call load first")
        return self._adapters

    def _loaded(self) -> DecoderModel:
        if self._model is None:
            raise RuntimeError("the model is not loaded; call load first")
        return self._model


def make_worker(
    config: WorkerConfig,
    progress: ProgressReporter | None = None,
    communicator: Communicator | None = None,
) -> Executor:
    """The worker that `config.kind` asks for; a witness has nothing to say to other ranks."""
    if config.kind is WorkerKind.WITNESS:
        from blockyard.workers.fake import WitnessWorker

        description = describe_model(config.model_dir, name=Path(config.model_dir).name)
        return WitnessWorker(config, description.vocab_size)
    return ModelWorker(config, progress, communicator)
