"""A stand-in for CUDA graphs, and workers whose kernels run in the emulation.

A tape does again what was done while it was made: the operations of torch and the launches of
kernels, on the memory of then, and none of the Python between. What is not static is poisoned, so
whoever counts on it is found.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import LlamaConfig, LlamaForCausalLM

from blockyard.cuda.emulator.build import missing_tools
from blockyard.cuda.launch import Kernel, KernelLibrary
from blockyard.cuda.sources import Build
from blockyard.workers import backends, graph_setup
from blockyard.workers.collectives import Communicator
from blockyard.workers.config import WorkerConfig
from blockyard.workers.graphs import DecodeGraphs
from blockyard.workers.worker import ModelWorker

CONTEXT, BLOCK_SIZE, NUM_BLOCKS = 96, 16, 24
GRAPH_BYTES = 1000
"""What a tape is said to hold beside its first one, which holds ten times as much."""


def tensors_in(values: object) -> list[torch.Tensor]:
    return [each for each in tree_flatten(values)[0] if isinstance(each, torch.Tensor)]


def memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def poison(tensor: torch.Tensor) -> None:
    """No number that is any good: floating ones NaN, others far too large."""
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    raw.fill_(0xFF if tensor.is_floating_point() else 0x3F)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # it has no types
    """Notes what is done while it is entered."""

    def __init__(self, static: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Callable[[], object]] = []
        self.own: dict[int, torch.Tensor] = {}
        """Memory that came into being meanwhile."""
        self.foreign: dict[int, torch.Tensor] = {}
        """Memory that is neither static nor the tape's own, and was read."""
        self._static = {memory_of(each): each for each in static}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = operation._schema.name
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal"):
            raise RuntimeError(f"{name} waits for the device: not while a stream is captured")
        before = {memory_of(each): each for each in tensors_in((args, kwargs))}
        for memory, tensor in before.items():
            if memory not in self.own and memory not in self._static:
                self.foreign[memory] = tensor
        result = operation(*args, **kwargs)
        made = [each for each in tensors_in(result) if memory_of(each) not in before]
        self.own.update((memory_of(each), each) for each in made)
        if operation._schema.is_mutable:
            self.steps.append(lambda: operation(*args, **kwargs))
        elif made and "empty" not in name:

            def again() -> None:
                for old, new in zip(made, tensors_in(operation(*args, **kwargs)), strict=True):
                    old.copy_(new)

            self.steps.append(again)
        return result

    def launched(self, kernel: Kernel, grid: int, block: int, arguments: Any, shared: int) -> None:
        """A kernel was launched; its arguments were read by then."""
        known = [*self._static.values(), *self.own.values()]
        spans = [(memory_of(each), each.untyped_storage().nbytes()) for each in known]
        for name in arguments.dtype.names:
            at = int(arguments[name][0]) if arguments.dtype[name].kind == "u" else 0
            if at and not any(begin <= at < begin + max(size, 1) for begin, size in spans):
                raise AssertionError(f"{name} of a launch lies in memory that is not static")
        frozen = arguments.copy()
        self.steps.append(lambda: kernel(grid, block, frozen, shared))


@dataclass
class Tape:
    """See `CapturedStep`."""

    output: torch.Tensor
    recorder: Recorder
    replayed: int = 0

    def replay(self) -> None:
        self.replayed += 1
        for tensor in self.recorder.own.values():
            poison(tensor)
        for step in self.recorder.steps:
            step()


class TapedLibrary:
    """The kernels, each launch noted while a tape is made."""

    def __init__(self, library: KernelLibrary) -> None:
        self._library = library
        self.recorder: Recorder | None = None

    def kernel(self, build: Build, name: str) -> Kernel:
        return TapedKernel(self._library.kernel(build, name), self)


class TapedKernel:
    """One of them."""

    def __init__(self, kernel: Kernel, library: TapedLibrary) -> None:
        self.arguments = kernel.arguments
        self._kernel = kernel
        self._library = library

    def __call__(self, grid: int, block: int, arguments: Any, shared_bytes: int = 0) -> None:
        self._kernel(grid, block, arguments, shared_bytes)
        recorder = self._library.recorder
        if recorder is not None:
            recorder.launched(self._kernel, grid, block, arguments, shared_bytes)


@dataclass
class Tapes:
    """Makes capturers, and keeps all tapes that they made.

    `refuse` is an error that captures end with.
    """

    library: TapedLibrary | None = None
    graphs: Any = None
    made: list[Tape] = field(default_factory=list)
    capturers: int = 0
    warmed: int = 0
    refuse: Exception | None = None

    def __call__(self) -> "Tapes":
        self.capturers += 1
        return self

    def warm_up(self, run: Callable[[], torch.Tensor]) -> None:
        self.warmed += 1
        run()

    def capture(self, run: Callable[[], torch.Tensor]) -> Tape:
        if self.refuse is not None:
            raise self.refuse
        recorder = Recorder(self._static_memory())
        if self.library is not None:
            self.library.recorder = recorder
        try:
            with recorder:
                output = run()
        finally:
            if self.library is not None:
                self.library.recorder = None
        # On a card its memory may be another's by the next replay.
        for tensor in recorder.foreign.values():
            poison(tensor)
        self.made.append(Tape(output, recorder))
        return self.made[-1]

    def held_bytes(self) -> int:
        return GRAPH_BYTES * (len(self.made) + 9 * bool(self.made))

    @property
    def replayed(self) -> int:
        return sum(tape.replayed for tape in self.made)

    def _static_memory(self) -> list[torch.Tensor]:
        """What stays where it is from one step to the next."""
        model, static = self.graphs._model.module, self.graphs._static
        found = [*model.parameters(), *model.buffers(), self.graphs._cache.pool]
        for owner in (self.graphs, static, *static._plans._room.values()):
            found += [each for each in vars(owner).values() if isinstance(each, torch.Tensor)]
        return found


@pytest.fixture
def tapes() -> Tapes:
    return Tapes()


@pytest.fixture(scope="session")
def half_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in bfloat16, of heads that other tests have built kernels for."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=120,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,  # wide, so that no two best scores are close
        tie_word_embeddings=False,
        eos_token_id=None,
    )
    folder = tmp_path_factory.mktemp("half")
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def start(half_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModelWorker]:
    """Starts a worker on emulated kernels; with tapes it has graphs."""
    missing = missing_tools()
    if missing is not None:
        pytest.skip(f"no emulation of kernels: {missing}")
    emulated: Callable[[torch.device], Any] = backends._emulated

    def make(
        tapes: Tapes | None = None, communicator: Communicator | None = None, **settings: Any
    ) -> ModelWorker:
        def taped(device: torch.device) -> Any:
            backend = emulated(device)
            if tapes is not None:
                tapes.library = backend._library = TapedLibrary(backend._library)
            return backend

        def noted(*args: Any) -> DecodeGraphs:
            graphs = DecodeGraphs(*args)
            if tapes is not None:
                tapes.graphs = graphs
            return graphs

        monkeypatch.setattr(backends, "_emulated", taped)
        monkeypatch.setattr(graph_setup, "DecodeGraphs", noted)
        config = WorkerConfig(
            str(half_dir),
            CONTEXT,
            **{
                "device": "cpu",
                "dtype": "bfloat16",
                "backend": "emulator",
                "block_size": BLOCK_SIZE,
                "num_blocks": NUM_BLOCKS,
                "num_host_blocks": 0,
                "threads": 1,
                "max_running": 4,
                "max_step_tokens": 16,
                **settings,
            },
        )
        worker = ModelWorker(config, communicator=communicator, new_capturer=tapes)
        worker.load()
        worker.allocate(NUM_BLOCKS)
        return worker

    return make
