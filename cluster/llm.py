"""A model in this process, for batch work without a server: `blockyard.LLM`.

The same request path as a server's: the same checks, the same scheduler, the same tokens for the
same seed. Loads nothing before it is made. Units: tokens.
"""

import asyncio
import secrets
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from blockyard.cluster.client_request import Settings, build_request
from blockyard.cluster.local_dispatcher import LocalDispatcher
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.resting import Weights
from blockyard.cluster.tokenizer import load_tokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.config import DEFAULT_BLOCK_SIZE, SchedulerConfig, Speculation
from blockyard.workers.adapter_description import describe_adapter
from blockyard.workers.catalog import WITNESS_MODEL, SilentProgress, resolve_model
from blockyard.workers.config import DEFAULT_ADAPTER_RANK, Executor, WorkerConfig, WorkerKind
from blockyard.workers.description import describe_model
from blockyard.workers.draft_description import find_draft
from blockyard.workers.draft_options import check_speculation

__all__ = ["LLM"]

T = TypeVar("T")
Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


class LLM:
    """Use as `with LLM(model) as llm`, or `close` it.

    Args:
        model: name, Hugging Face repository, or directory.
        device, dtype, kv_dtype, cuda_graphs, num_blocks, num_host_blocks, threads: see
            `WorkerConfig`.
        block_size: token slots in a block.
        adapters: directories of LoRA adapters, by the names that `generate` takes.
        max_adapters: that may be loaded at once; None: as many as are given here.
        max_adapter_rank: the widest that is taken.
        max_running, max_step_tokens, speculate: see `SchedulerConfig`.
        draft_model: the model that guesses, with `speculate` draft: name, repository or directory.
        draft_weights: see `WorkerConfig`.

    Raises:
        ModelUnavailable, ModelFilesError, UnsupportedModel, NoRoom, ValueError: it cannot be
            loaded, or not as asked.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        device: str = "auto",
        dtype: str = "auto",
        kv_dtype: str = "auto",
        cuda_graphs: str = "auto",
        block_size: int = DEFAULT_BLOCK_SIZE,
        num_blocks: int | None = None,
        num_host_blocks: int | None = None,
        threads: int | None = None,
        max_running: int = 256,
        max_step_tokens: int = 512,
        speculate: Literal["off", "ngram", "draft"] = "off",
        draft_model: str | None = None,
        draft_weights: str = "auto",
        adapters: Mapping[str, str | Path] | None = None,
        max_adapters: int | None = None,
        max_adapter_rank: int = DEFAULT_ADAPTER_RANK,
    ) -> None:
        directory = resolve_model(model, None, SilentProgress())
        description = describe_model(directory, directory.name if Path(model).is_dir() else model)
        kind = WorkerKind.WITNESS if model == WITNESS_MODEL else WorkerKind.MODEL
        draft = None
        if draft_model is not None:
            draft = find_draft(draft_model, kind, description, SilentProgress())
        check_speculation(Speculation(speculate), draft, draft_weights)
        limits = SchedulerConfig(
            description.context_tokens,
            block_size=block_size,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            max_waiting=sys.maxsize,  # a batch may be as long as it is
            speculate=Speculation(speculate),
        )
        worker = WorkerConfig(
            str(directory),
            description.context_tokens,
            kind=kind,
            device=device,
            dtype=dtype,
            kv_dtype=kv_dtype,
            cuda_graphs=cuda_graphs,
            block_size=block_size,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            threads=threads,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            draft_dir=draft.directory if draft is not None else None,
            draft_weights=draft_weights,
            max_adapters=len(adapters or {}) if max_adapters is None else max_adapters,
            max_adapter_rank=max_adapter_rank,
        )
        self._model, self._max_rank = description.name, max_adapter_rank
        # Imported here: the name of this class must not cost what torch costs.
        from blockyard.workers.make_worker import make_worker

        def make_again(model_dir: str) -> Executor:
            blocks = self._dispatcher.engine.ledger()
            return make_worker(
                replace(
                    worker,
                    model_dir=model_dir,
                    num_blocks=blocks.blocks.total,
                    num_host_blocks=blocks.host_blocks.total,
                )
            )

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="blockyard-llm")
        self._thread.start()
        try:
            self._dispatcher = self._run(
                LocalDispatcher.start(description, make_worker(worker), limits)
            )
            tokenizers = {description.name: load_tokenizer(directory)}
            self._service = GenerationService(self._dispatcher, tokenizers)
            self._rest = self._dispatcher.rest(make_again)
            for name, folder in (adapters or {}).items():
                self.load_adapter(name, folder)
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        """It is loaded already."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Let the model go."""
        self.close()

    def close(self) -> None:
        """Let the model go; whatever is still generated is given up."""
        if self._thread.is_alive():
            self._run(self._dispatcher.close())
            self._end_loop()

    def sleep(self) -> None:
        """Give back the memory of weights and blocks; requests wait until `wake_up`.

        Raises:
            RuntimeError: it sleeps already.
        """
        self._run(self._rest.sleep())

    def wake_up(self) -> None:
        """Load the model again and go on.

        Raises:
            RuntimeError: it does not sleep.
            GroupLost: it could not be loaded.
        """
        self._run(self._rest.wake())

    def update_weights(self, model: str) -> None:
        """Go on with other weights of the same shape, awake or asleep; no old block is found.

        Args:
            model: name, Hugging Face repository, or directory.

        Raises:
            ModelUnavailable, ModelFilesError, ValueError: there are none, or of another shape;
                nothing has changed.
            WeightsNotLoaded: they could not be loaded; the model goes on with those it had.
            GroupLost: neither could.
        """
        directory = resolve_model(model, None, SilentProgress())
        self._run(self._rest.update(Weights(str(directory), secrets.token_hex(8))))

    def load_adapter(self, name: str, directory: str | Path) -> None:
        """Have a LoRA adapter, which `generate` takes by its name.

        Raises:
            AdapterRefused, RequestRefused: it cannot be served, with the reason.
        """
        adapter = describe_adapter(directory, name, self._max_rank)
        self._run(self._dispatcher.load_adapter(self._model, adapter))

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; requests that run with it finish first."""
        self._run(self._dispatcher.unload_adapter(self._model, name))

    def generate(
        self,
        prompts: Sequence[Prompt],
        settings: Settings | Sequence[Settings] | None = None,
        *,
        adapter: str | Sequence[str] = "",
        progress: bool = True,
    ) -> list[pb.GenerateResponse]:
        """The answers to many prompts, in their order.

        Args:
            prompts: each a text, tokens, or the messages of a chat.
            settings: for all of them, or one for each.
            adapter: name of one for all of them, or one for each; empty for the model itself.
            progress: show a bar, where standard error is a terminal.

        Raises:
            ApiError: a request was refused or failed; the others are given up.
            ValueError: not as many settings or adapters as prompts.
        """
        if settings is None or isinstance(settings, Settings):
            settings = [settings or Settings()] * len(prompts)
        names = [adapter] * len(prompts) if isinstance(adapter, str) else adapter
        requests = [_request(*each) for each in zip(prompts, settings, names, strict=True)]
        bar = Progress(
            *Progress.get_default_columns(),
            MofNCompleteColumn(),
            console=Console(stderr=True),
            disable=not progress or not sys.stderr.isatty(),
        )
        with bar:
            task = bar.add_task("generating", total=len(requests))
            return self._run(self._generate(requests, lambda: bar.advance(task)))

    async def _generate(
        self, requests: Sequence[pb.GenerateRequest], done: Any
    ) -> list[pb.GenerateResponse]:
        async def one(request: pb.GenerateRequest) -> pb.GenerateResponse:
            response = await self._service.generate(request)
            done()
            return response

        asking = [asyncio.create_task(one(request)) for request in requests]
        try:
            return list(await asyncio.gather(*asking))
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _request(prompt: Prompt, settings: Settings, model: str) -> pb.GenerateRequest:
    if isinstance(prompt, str):
        return build_request(prompt=prompt, model=model, settings=settings)
    if prompt and isinstance(prompt[0], Mapping):
        messages = cast("Sequence[Mapping[str, str]]", prompt)
        return build_request(messages=messages, model=model, settings=settings)
    tokens = cast("Sequence[int]", prompt)
    return build_request(token_ids=tokens, model=model, settings=settings)
