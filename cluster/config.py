"""Everything one deployment is told, as one frozen value. Made by the command line, checked here.

Knows nothing of how processes are started. Units are in the names.
"""

from dataclasses import dataclass, field

from blockyard.cluster.logs import LogConfig
from blockyard.cluster.request.speech_format import REASONING_FORMATS, TOOL_FORMATS
from blockyard.cluster.tls import TlsFiles
from blockyard.scheduler.config import (
    DEFAULT_BLOCK_SIZE,
    PreemptionPolicy,
    SchedulerConfig,
    Speculation,
)
from blockyard.scheduler.scaling import ScalingPolicy
from blockyard.workers.adapter_description import AdapterDescription
from blockyard.workers.config import (
    CUDA_GRAPHS,
    DEFAULT_ADAPTER_RANK,
    DEVICES,
    DTYPES,
    KV_DTYPES,
    WEIGHTS,
    WorkerConfig,
    WorkerKind,
)
from blockyard.workers.description import ModelDescription
from blockyard.workers.draft_options import check_speculation

__all__ = ["DEFAULT_GRPC_PORT", "LOOPBACK", "ServeConfig"]

LOOPBACK = "127.0.0.1"
DEFAULT_GRPC_PORT = 50051
_MORE_ADAPTERS = 4
"""Beside those named at start, where others may be loaded."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """One model's deployment.

    Attributes:
        model: what to serve; its directory is the same on every node.
        kind, device, dtype, kv_dtype, weights, cuda_graphs, block_size, num_blocks,
            num_host_blocks, kv_memory_bytes, threads: see `WorkerConfig`.
        max_running, max_step_tokens, max_waiting, preemption, speculate: see `SchedulerConfig`.
        pipeline_depth: see `SchedulerConfig`; None: 2, or 1 where guesses need that.
        draft: the model that guesses, with `speculate` draft; its directory is the same on every
            node, too.
        draft_weights: see `WorkerConfig`.
        tool_call_parser, reasoning_parser: how the model marks calls and reasoning, see
            `speech_format`; auto tells it from the chat template.
        num_groups: copies of the model.
        num_ranks: workers in each group.
        min_groups, max_groups: bounds between which the number of groups follows the load, in place
            of `num_groups`; a minimum of 0 lets an idle model go to none. None: it stays.
        scale_queue_seconds, scale_quiet_seconds, scale_idle_seconds: see `ScalingPolicy`.
        grpc_host, grpc_port: where each ingress listens for clients.
        http_host, http_port: where each ingress listens for clients of OpenAI's API; a port of None
            turns it off.
        api_keys_file: file of the API keys that callers must show one of, on the ingress's node;
            None lets everybody call.
        tls: certificate of the ingress's listeners, see `TlsFiles`; None leaves them in the clear.
        wire_host: address that engines, workers and the central scheduler listen on for one
            another; None means each node's own address in the cluster.
        metrics_host, metrics_port: where the ingress offers Prometheus metrics; a port of None
            turns them off.
        serve_grpc_port: port of Ray Serve's own gRPC proxy; None leaves the proxy off.
        drain_seconds: most time for live requests to end at shutdown.
        stall_seconds: a group that has work but finished no step for so long is unhealthy.
        resume_seconds: how long a live request waits for another group when its own is lost, and
            a new one for the first group of a model that has gone to none.
        allow_chaos: whether anybody who reaches an ingress may have things go wrong, for tests.
        allow_admin: whether callers may change what is served: put models to sleep, wake them, give
            them other weights; where API keys are asked for, with an admin's.
        adapters: LoRA adapters that are served from the start.
        max_adapters: adapters that a group may have loaded at once; None: those named here, and a
            few more where others may be loaded.
        max_adapter_rank: the widest that is taken.
        adapters_root: directory on every node that others may be loaded from while serving, with
            `allow_admin`; None: none are loaded.
        weights_root: directory on every node that such weights must be in; None: none are loaded.
        num_ingresses: processes that listen for clients, each on a node of its own.
        group_resource, ingress_resource, central_resource: name of a Ray resource, of which a
            group, an ingress or the central scheduler takes one unit, so that it runs on nodes
            that offer it; None means any node.
        logs: how every process logs.
        trace_endpoint: URL that spans of requests go to (OTLP over HTTP); None makes none.
    """

    model: ModelDescription
    kind: WorkerKind = WorkerKind.MODEL
    device: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    weights: str = "auto"
    cuda_graphs: str = "auto"
    block_size: int = DEFAULT_BLOCK_SIZE
    num_blocks: int | None = None
    num_host_blocks: int | None = None
    kv_memory_bytes: int | None = None
    threads: int | None = None
    max_running: int = 256
    max_step_tokens: int = 512
    max_waiting: int = 4096
    preemption: PreemptionPolicy = PreemptionPolicy.AUTO
    pipeline_depth: int | None = None
    speculate: Speculation = Speculation.OFF
    draft: ModelDescription | None = None
    draft_weights: str = "auto"
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    num_groups: int = 1
    num_ranks: int = 1
    min_groups: int | None = None
    max_groups: int | None = None
    scale_queue_seconds: float = 2.0
    scale_quiet_seconds: float = 120.0
    scale_idle_seconds: float = 300.0
    grpc_host: str = LOOPBACK
    grpc_port: int = DEFAULT_GRPC_PORT
    http_host: str = LOOPBACK
    http_port: int | None = None
    api_keys_file: str | None = None
    tls: TlsFiles | None = None
    metrics_host: str = LOOPBACK
    metrics_port: int | None = None
    wire_host: str | None = None
    serve_grpc_port: int | None = None
    drain_seconds: float = 30.0
    stall_seconds: float = 120.0
    resume_seconds: float = 60.0
    allow_chaos: bool = False
    allow_admin: bool = False
    weights_root: str | None = None
    adapters: tuple[AdapterDescription, ...] = ()
    max_adapters: int | None = None
    max_adapter_rank: int = DEFAULT_ADAPTER_RANK
    adapters_root: str | None = None
    num_ingresses: int = 1
    group_resource: str | None = None
    ingress_resource: str | None = None
    central_resource: str | None = None
    logs: LogConfig = field(default_factory=LogConfig)
    trace_endpoint: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be started."""
        for name, known in (
            ("device", DEVICES),
            ("dtype", DTYPES),
            ("kv_dtype", KV_DTYPES),
            ("weights", WEIGHTS),
            ("cuda_graphs", CUDA_GRAPHS),
            ("draft_weights", WEIGHTS),
            ("tool_call_parser", TOOL_FORMATS),
            ("reasoning_parser", REASONING_FORMATS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; known are {', '.join(known)}")
        for name in ("num_groups", "num_ranks", "num_ingresses"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_blocks is not None and self.num_blocks < 1:
            raise ValueError(f"num_blocks is {self.num_blocks}; it must be at least 1")
        if self.num_host_blocks is not None and self.num_host_blocks < 0:
            raise ValueError(
                f"num_host_blocks is {self.num_host_blocks}; it must be 0 (no swapping) or more"
            )
        for name in ("drain_seconds", "stall_seconds", "resume_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("api_keys_file", "tls"):
            if getattr(self, name) is not None and self.serve_grpc_port is not None:
                raise ValueError(
                    f"{name} and serve_grpc_port do not go together: Ray Serve's own proxy "
                    "checks no keys and speaks no TLS"
                )
        if self.weights_root is not None and not self.allow_admin:
            raise ValueError(
                "weights_root is given without allow_admin: nobody could ask for other weights"
            )
        check_speculation(self.speculate, self.draft, self.draft_weights)
        self._check_adapters()
        _ = self.scheduler, self.scaling  # their own checks

    def _check_adapters(self) -> None:
        if self.adapters_root is not None and not self.allow_admin:
            raise ValueError(
                "adapters_root is given without allow_admin: nobody could load other adapters"
            )
        if self.max_adapter_rank < 1 or (self.max_adapters or 0) < 0:
            raise ValueError(
                f"max_adapter_rank is {self.max_adapter_rank} and max_adapters is "
                f"{self.max_adapters}; they must be at least 1 and 0"
            )
        names = [self.model.name, *(adapter.name for adapter in self.adapters)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"adapters: {', '.join(twice)} is the name of two, or of the model; give each its "
                "own name"
            )
        if len(self.adapters) > self.adapter_slots:
            raise ValueError(
                f"{len(self.adapters)} adapters are named and max_adapters is {self.max_adapters}; "
                "allow as many"
            )

    @property
    def adapter_slots(self) -> int:
        """Adapters that a group may have loaded at once."""
        if self.max_adapters is not None:
            return self.max_adapters
        return len(self.adapters) + (_MORE_ADAPTERS if self.adapters_root is not None else 0)

    @property
    def scaling(self) -> ScalingPolicy | None:
        """How the number of groups follows the load; None when it does not."""
        if self.max_groups is None:
            if self.min_groups is not None:
                raise ValueError(f"min_groups is {self.min_groups} without max_groups; give both")
            return None
        return ScalingPolicy(
            min_groups=1 if self.min_groups is None else self.min_groups,
            max_groups=self.max_groups,
            queue_seconds=self.scale_queue_seconds,
            quiet_seconds=self.scale_quiet_seconds,
            idle_seconds=self.scale_idle_seconds,
        )

    @property
    def first_groups(self) -> int:
        """Groups that are started first; one at least, so that it is known whether it can be."""
        return self.num_groups if self.scaling is None else max(1, self.scaling.min_groups)

    @property
    def scheduler(self) -> SchedulerConfig:
        """Limits of each group's scheduler."""
        depth = self.pipeline_depth
        if depth is None:
            depth = 2 if self.speculate is Speculation.OFF else 1
        return SchedulerConfig(
            max_context_tokens=self.model.context_tokens,
            block_size=self.block_size,
            max_running=self.max_running,
            max_step_tokens=self.max_step_tokens,
            max_waiting=self.max_waiting,
            vocab_size=self.model.vocab_size,
            preemption=self.preemption,
            pipeline_depth=depth,
            speculate=self.speculate,
        )

    def worker(self, rank: int) -> WorkerConfig:
        """What one rank of a group is told."""
        return WorkerConfig(
            model_dir=self.model.directory,
            max_context_tokens=self.model.context_tokens,
            kind=self.kind,
            device=self.device,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            weights=self.weights,
            cuda_graphs=self.cuda_graphs,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            num_host_blocks=self.num_host_blocks,
            kv_memory_bytes=self.kv_memory_bytes,
            threads=self.threads,
            max_step_tokens=self.max_step_tokens,
            max_running=self.max_running,
            draft_dir=self.draft.directory if self.draft is not None else None,
            draft_weights=self.draft_weights,
            max_adapters=self.adapter_slots,
            max_adapter_rank=self.max_adapter_rank,
            rank=rank,
            world_size=self.num_ranks,
        )
