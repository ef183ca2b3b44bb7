"""What a worker is told at start, and what it answers about itself. Plain values, no torch."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from blockyard.scheduler.config import DEFAULT_BLOCK_SIZE
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.workers.adapter_description import AdapterDescription

__all__ = [
    "BACKENDS",
    "CUDA_GRAPHS",
    "DEFAULT_ADAPTER_RANK",
    "DEVICES",
    "DTYPES",
    "KV_DTYPES",
    "WEIGHTS",
    "AllocatorMemory",
    "Executor",
    "FinishesMoves",
    "Formation",
    "TakesAdapters",
    "WorkerConfig",
    "WorkerKind",
    "WorkerProfile",
]


DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_DTYPES = ("auto", "bfloat16", "int8", "fp8")
BACKENDS = ("auto", "torch", "kernels", "emulator")
CUDA_GRAPHS = ("auto", "off")
WEIGHTS = ("auto", "fp32", "bf16", "int8", "int4")


DEFAULT_ADAPTER_RANK = 16
"""What most adapters have or are below."""


class WorkerKind(StrEnum):
    """`model` runs a real model; `witness` has none (see `workers/fake.py`)."""

    MODEL = "model"
    WITNESS = "witness"


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How one rank loads and what it may use.

    Attributes:
        model_dir: a local directory in Hugging Face layout.
        kind: real model or witness.
        device: `auto`, `cpu` or `cuda`.
        dtype: `auto` (float32 on CPU, the checkpoint's own on a GPU), `float32`, `bfloat16`,
            `float16`.
        kv_dtype: what keys and values are kept in: `auto` (the model's dtype), `bfloat16`, `int8`
            (on a CPU), `fp8` (e4m3, by kernels); see `workers/kv_dtype.py`.
        weights: how a CPU keeps weights, whatever the dtype of sums: `auto` (fp32), `fp32`, `bf16`,
            `int8`, `int4`; see `workers/cpu/packed.py`.
        backend: what computes attention: `auto` (the fastest that serves the model), `torch`,
            `kernels` (a GPU's), `emulator` (the same kernels on a CPU, for tests).
        cuda_graphs: whether decode steps are replayed as CUDA graphs: `auto` (where they can be),
            `off`; see `workers/graphs.py`.
        block_size: token slots in a block.
        num_blocks: pool size; None means: measure.
        num_host_blocks: blocks kept in host memory for swapping; None means the device's default.
        kv_memory_bytes: memory for KV blocks when measuring; None means the device's default.
        threads: CPU threads of a step; None means all cores, divided by the group's ranks.
        max_step_tokens, max_running, max_context_tokens: the scheduler's limits, which bound the
            largest step.
        draft_dir: directory of the model that makes guesses for plans; None: there is none.
        draft_weights: how a CPU keeps its weights; `auto`: as those of the other model.
        max_adapters: adapters that may be loaded at once; 0: none are taken.
        max_adapter_rank: the widest that is taken.
        rank, world_size: this worker's place in its group.
    """

    model_dir: str
    max_context_tokens: int
    kind: WorkerKind = WorkerKind.MODEL
    device: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    weights: str = "auto"
    backend: str = "auto"
    cuda_graphs: str = "auto"
    block_size: int = DEFAULT_BLOCK_SIZE
    num_blocks: int | None = None
    num_host_blocks: int | None = None
    kv_memory_bytes: int | None = None
    threads: int | None = None
    max_step_tokens: int = 512
    max_running: int = 256
    draft_dir: str | None = None
    draft_weights: str = "auto"
    max_adapters: int = 0
    max_adapter_rank: int = DEFAULT_ADAPTER_RANK
    rank: int = 0
    world_size: int = 1


@dataclass(frozen=True, slots=True)
class Formation:
    """Where the ranks of a group meet, to compute steps together.

    Attributes:
        transport: `shm`, `gloo` or `nccl`; see `workers/collectives.py`.
        address: what it means is the transport's own affair.
        generation: counts how often this group was formed.
        size: how many ranks come.
    """

    transport: str
    address: str
    generation: int
    size: int


@dataclass(frozen=True, slots=True)
class WorkerProfile:
    """What a rank measured after loading its model. Bytes are this rank's own.

    `max_blocks` is how many blocks this rank has room for, `max_host_blocks` how many more in host
    memory; the group takes the least over ranks. `graph_bytes` is what CUDA graphs hold, 0 without
    any and when it was not measured. The two rates are what a step and a swap reached
    when measured at load; 0 means not measured.
    """

    max_blocks: int
    block_bytes: int
    weight_bytes: int
    activation_bytes: int
    device: str
    dtype: str
    max_host_blocks: int = 0
    prefill_tokens_per_second: float = 0.0
    link_bytes_per_second: float = 0.0
    graph_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AllocatorMemory:
    """What a device's caching allocator holds at one moment, in bytes.

    `free_bytes` is reserved from the device and not given out, `largest_free_bytes` the largest
    piece of it.
    """

    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int
    largest_free_bytes: int

    @property
    def slack_bytes(self) -> int:
        """Reserved and not allocated."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def external_fragmentation(self) -> float:
        """`1 - largest_free / total_free`; 0 when nothing is free."""
        return 1 - self.largest_free_bytes / self.free_bytes if self.free_bytes else 0.0


class Executor(Protocol):
    """One rank, whatever stands behind it. Steps come one at a time, calls in this order."""

    def load(self) -> WorkerProfile:
        """Load the model and measure what is left for blocks."""
        ...

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Make the pool and the host's, with the same numbers on every rank.

        Called again for another engine: what plans said before is forgotten.
        """
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. An exception means that this rank is lost."""
        ...


@runtime_checkable
class FinishesMoves(Protocol):
    """An `Executor` whose moves of blocks may go on when a step is over."""

    @property
    def finished_step(self) -> int:
        """Newest step of which, and of all before which, nothing goes on any more."""
        ...


@runtime_checkable
class TakesAdapters(Protocol):
    """An `Executor` that may compute rows with adapters."""

    def load_adapter(self, adapter: AdapterDescription) -> None:
        """Have an adapter ready for steps to come; comes at any time after `load`.

        Raises:
            AdapterRefused: it cannot be served, with the reason; nothing has changed.
        """
        ...

    def drop_adapter(self, adapter_id: str) -> None:
        """Forget an adapter, which no step uses any more. Comes at any time after `load`."""
        ...
