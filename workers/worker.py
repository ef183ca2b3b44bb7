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
from blockyard.workers.block_transfers import BlockTransfers
from blockyard.workers.collectives import Communicator
from blockyard.workers.config import WorkerConfig, WorkerProfile
from blockyard.workers.divided_sampling import sample_divided, sample_whole
from blockyard.workers.draft_loading import load_draft
from blockyard.workers.draft_model import DraftModel
from blockyard.workers.grammar import grammars_of, prepare_masks
from blockyard.workers.graph_setup import GraphSetup
from blockyard.workers.graphs import DecodeGraphs, NewCapturer
from blockyard.workers.guesses import reached, rules_ahead
from blockyard.workers.host_memory import HostMemory, host_memory_of
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_dtype import geometry_of
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.kv_scales import settle_head_scales
from blockyard.workers.model import DecoderModel
from blockyard.workers.move_lanes import Lane, lanes_of
from blockyard.workers.progress import ProgressReporter, SilentProgress
from blockyard.workers.room import measure_rank
from blockyard.workers.sampler import grammars_ahead

__all__ = ["ModelWorker"]

_NOTHING = StepResult(0, ())
_NO_FINITE_SCORE = "no token can be chosen: the model gave scores that are no numbers"


class ModelWorker:
    """An `Executor` that runs a real model, or its rank's part of one.

    Args:
        config: what to load and run.
        progress: told of the load.
        communicator: this rank's end of its group, joined by others before the first step; None
            makes one, for a rank that is alone.
        new_capturer: makes what captures CUDA graphs; None means the device's own, if it has one.
        make_lanes: where blocks move beside the steps.

    Raises:
        ValueError: a device that this machine lacks.
    """

    def __init__(
        self,
        config: WorkerConfig,
        progress: ProgressReporter | None = None,
        communicator: Communicator | None = None,
        new_capturer: NewCapturer | None = None,
        make_lanes: Callable[[torch.device], tuple[Lane, Lane]] = lanes_of,
    ) -> None:
        self._config = config
        self._new_capturer = new_capturer
        self._make_lanes = make_lanes
        self._communicator = communicator or Communicator(config.rank, config.world_size)
        self._progress = progress if progress is not None else SilentProgress()
        self._device = resolve_device(config.device)
        self._backend: AttentionBackend = ReferenceBackend()
        self._model: DecoderModel | None = None
        self._draft: DraftModel | None = None
        self._cache: KVCache | None = None
        self._transfers: BlockTransfers | None = None
        self._batches: BatchBuilder | None = None
        self._adapters: AdapterBank | None = None
        self._divided: int | None = None
        self._setup: GraphSetup | None = None
        self._graphs: DecodeGraphs | None = None

    def load(self) -> WorkerProfile:
        """Load the model and measure what is left for blocks; see `Executor`.

        Raises:
            ModelFilesError, UnsupportedModel: the model cannot be loaded or served.
            NoRoom: the memory allowed does not hold one context.
        """
        # Imported here, because transformers takes seconds and the witness never needs it.
        from blockyard.workers.loader import load_model

        config, progress, communicator = self._config, self._progress, self._communicator
        torch.set_num_threads(self._threads)
        folder, context = Path(config.model_dir), config.max_context_tokens
        model = load_model(folder, self._device, config.dtype, context, progress, communicator)
        if config.draft_dir is None:
            return self.adopt(model)
        own = self._device, self._threads, progress, communicator
        return self.adopt(model, load_draft(config, model.vocab_size, *own))

    def adopt(self, model: DecoderModel, draft: DraftModel | None = None) -> WorkerProfile:
        """Take models that are on the device already, and measure what is left for blocks.

        Raises:
            UnsupportedModel, NoRoom: see `load`.
        """
        config = self._config
        self._model, self._draft = model, draft
        geometry = self._geometry(model)
        self._backend = choose_backend(config, model, geometry, self._threads)
        self._divided = model.divide_logits()
        self._adapters = self._make_bank(model)
        self._graphs = None
        self._setup = GraphSetup(
            config, model, self._backend, geometry, self._communicator, self._new_capturer
        )
        self._progress.stage("measuring steps", None)
        profile = measure_rank(
            config, model, geometry, self._run, self._setup, self._adapters.most_bytes
        )
        draft_bytes = draft.model.weight_bytes if draft is not None else 0
        return replace(profile, weight_bytes=profile.weight_bytes + draft_bytes)

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Make the pools; see `Executor`."""
        model, setup = self._loaded(), self._setup
        if self._transfers is not None:
            self._transfers.finish()
        self._cache = self._graphs = self._transfers = None  # their memory is needed
        assert setup is not None, "it comes with the model"
        self._cache = KVCache(
            self._geometry(model),
            num_blocks,
            self._device,
            num_host_blocks,
            self._backend.mover,
            null_block=setup.refusal is None,
        )
        self._transfers = BlockTransfers(self._cache, self._make_lanes(self._device))
        with torch.inference_mode():
            self._graphs = setup.make(self._cache)
        self._batches = BatchBuilder(
            num_blocks,
            self._config.block_size,
            model.vocab_size,
            self._device,
            grammars_of(Path(self._config.model_dir), model.vocab_size),
            self._communicator,
            drafts=self._draft is not None,
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step; see `Executor`.

        Raises:
            PlanError: the plan contradicts the ones before it.
            ValueError: it moves blocks that the pools do not have.
        """
        if self._cache is None or self._batches is None or self._transfers is None:
            raise RuntimeError("a plan came before the pool was made; call allocate first")
        if not self._communicator.joined:
            raise RuntimeError("a plan came before the ranks met; have them join a group first")
        settle_head_scales(self._cache, self._loaded(), self._config)
        if self._draft is not None and self._cache.beside is not None:
            self._draft.settle(self._cache.beside)
        began = time.perf_counter()
        batch = self._batches.apply(plan)
        moving = time.perf_counter()
        self._transfers.begin(plan, batch.attention if batch is not None else None)
        moving = time.perf_counter() - moving  # all of it, where there is nothing beside the steps
        result = StepResult(plan.step, ())
        if batch is not None:
            with torch.inference_mode():
                batch, result = self._run(self._loaded(), self._cache, batch, result)
            if not self._communicator.rank:
                self._batches.note_sampled(batch, result.token_ids)
        seconds = time.perf_counter() - began
        return self._transfers.tell(replace(result, compute_seconds=seconds - moving))

    @property
    def finished_step(self) -> int:
        """See `FinishesMoves`."""
        return self._transfers.finished_step if self._transfers is not None else 0

    def host_memory(self) -> HostMemory | None:
        """See `SharesHostMemory`."""
        return host_memory_of(self._cache, self._config)

    def load_adapter(self, adapter: AdapterDescription) -> None:
        """Have an adapter ready for steps to come; see `Executor`.

        Raises:
            AdapterRefused: it cannot be served.
        """
        self._bank().load(adapter)

    def drop_adapter(self, adapter_id: str) -> None:
        """Forget an adapter; see `Executor`."""
        self._bank().drop(adapter_id)

    def _run(
        self, model: DecoderModel, cache: KVCache, batch: FlatBatch, result: StepResult = _NOTHING
    ) -> tuple[FlatBatch, StepResult]:
        """Make guesses, run the model and sample; the batch with guesses, and what came out."""
        if not self._communicator.rank:
            for known in batch.rule_tokens:
                known.rules.record(known.position, known.token_ids)
        draft, layers = self._draft, cache.beside
        if draft is None or layers is None:
            return batch, self._compute(model, cache, batch, result)
        batch = draft.guess(layers, batch)
        result = self._compute(model, cache, batch, result)
        draft.confirm(layers, batch, result.token_ids)
        guesses = tuple(token for row in batch.guessed for token in row.token_ids)
        return batch, replace(result, guesses=guesses)

    def _compute(
        self, model: DecoderModel, cache: KVCache, batch: FlatBatch, result: StepResult
    ) -> StepResult:
        """Run the model and sample; `result` with what came out."""
        rows = batch.sample_rows
        if not self._communicator.rank:
            rows = rules_ahead(rows, batch.guessed)
            prepare_masks(grammars_ahead(rows, model.vocab_size, self._device))
        logits = self._graphs.run(batch) if self._graphs is not None else None
        if logits is None:
            attention = CachedAttention(cache, self._backend.begin(batch.attention))
            adapted = self._bank().rows(batch.adapters, batch.attention.counts)
            logits = model.forward(
                batch.input_ids, batch.positions, batch.sample_tokens, attention, adapted
            )
        computed, sampler = time.perf_counter(), self._backend.sampler
        if self._divided is None:
            answer = sample_whole(logits, batch, rows, sampler)
        else:
            found = sample_divided(logits, batch, rows, self._divided, self._communicator, sampler)
            if found is None:
                return result  # rank 0 alone knows what was chosen
            answer = found
        sampled, prompt_logprobs = reached(answer[0], batch.guessed), answer[1]
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

    def _geometry(self, model: DecoderModel) -> KVGeometry:
        beside = self._draft.geometry if self._draft is not None else None
        return geometry_of(self._config, model.attention, model.dtype, self._device, beside)

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
