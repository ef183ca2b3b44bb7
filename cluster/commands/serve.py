"""`blockyard serve`: keeps a deployment up until SIGTERM or Ctrl-C, which drain it."""

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.commands.log_options import LogFormat, LogLevel, check_tracing, logging_as
from blockyard.cluster.commands.serve_options import (
    Adapters,
    AdaptersRoot,
    AllowAdmin,
    AllowChaos,
    ApiKeys,
    CudaGraphs,
    DraftModel,
    DraftWeights,
    Dtype,
    HostBlocks,
    KvDtype,
    KvMemory,
    MaxAdapterRank,
    MaxAdapters,
    MetricsPort,
    PipelineDepth,
    RayAddress,
    ServeGrpcPort,
    Speculate,
    TlsClientCa,
    TraceEndpoint,
    Weights,
    WeightsRoot,
)
from blockyard.cluster.commands.start import (
    Blocks,
    Groups,
    Model,
    Port,
    TlsFile,
    check_api_keys,
    configure,
    described_adapters,
    group_numbers,
    running,
    tls_files,
)
from blockyard.scheduler.config import PreemptionPolicy, Speculation

if TYPE_CHECKING:
    from blockyard.cluster.config import ServeConfig

__all__ = ["serve"]


def serve(
    model: Model = "smollm2-135m",
    host: Annotated[str, typer.Option(help="Address to listen on for clients.")] = "127.0.0.1",
    port: Port = 50051,
    http_port: Annotated[
        int | None,
        typer.Option(
            help="Offer OpenAI's HTTP API on this port too.",
            show_default="off",
            min=1,
            max=65535,
        ),
    ] = None,
    http_host: Annotated[
        str, typer.Option(help="Address to listen on for HTTP clients.")
    ] = "127.0.0.1",
    api_keys: ApiKeys = None,
    tls_cert: TlsFile = None,
    tls_key: TlsFile = None,
    tls_client_ca: TlsClientCa = None,
    groups: Groups = "1",
    scale_quiet_seconds: Annotated[
        float,
        typer.Option(help="With MIN:MAX: fewer must have been enough for so long.", min=0.1),
    ] = 120.0,
    scale_idle_seconds: Annotated[
        float,
        typer.Option(help="With a MIN of 0: the last one goes when idle for so long.", min=0.1),
    ] = 300.0,
    ranks: Annotated[
        int,
        typer.Option("--ranks", "--tp", help="Workers that share each copy of the model.", min=1),
    ] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Dtype = "auto",
    kv_dtype: KvDtype = "auto",
    weights: Weights = "auto",
    cuda_graphs: CudaGraphs = "auto",
    block_size: Annotated[int, typer.Option(help="Token slots in a block.", min=1)] = 16,
    blocks: Blocks = None,
    host_blocks: HostBlocks = None,
    kv_memory_mib: KvMemory = None,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads of each worker.", show_default="all cores", min=1),
    ] = None,
    max_running: Annotated[int, typer.Option(help="Most requests in one step.", min=1)] = 256,
    max_step_tokens: Annotated[int, typer.Option(help="Most tokens in one step.", min=2)] = 512,
    max_waiting: Annotated[
        int, typer.Option(help="Most requests that queue in a group before refusals.", min=1)
    ] = 4096,
    preemption: Annotated[
        PreemptionPolicy,
        typer.Option(
            help="What becomes of the blocks of a request that must make room: kept in host "
            "memory, dropped and computed anew, or the cheaper of the two each time."
        ),
    ] = PreemptionPolicy.AUTO,
    pipeline_depth: PipelineDepth = None,
    speculate: Speculate = Speculation.OFF,
    draft_model: DraftModel = None,
    draft_weights: DraftWeights = "auto",
    tool_call_parser: Annotated[
        str,
        typer.Option(
            help="How the model writes calls of functions: hermes, llama3, mistral or none; auto "
            "tells it from the chat template."
        ),
    ] = "auto",
    reasoning_parser: Annotated[
        str,
        typer.Option(
            help="How the model marks its reasoning: think, mistral or none; auto tells it from "
            "the chat template."
        ),
    ] = "auto",
    metrics_port: MetricsPort = None,
    metrics_host: Annotated[
        str, typer.Option(help="Address to listen on for Prometheus.")
    ] = "127.0.0.1",
    serve_grpc_port: ServeGrpcPort = None,
    drain_seconds: Annotated[
        float, typer.Option(help="Most time for live requests to end at shutdown.", min=0.1)
    ] = 30.0,
    log_format: LogFormat = "text",
    log_level: LogLevel = "INFO",
    log_file: Annotated[
        Path | None,
        typer.Option(
            help="Append the log lines of all processes to this file, on each node its own.",
            show_default="standard error",
            dir_okay=False,
        ),
    ] = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Log the prompts of requests too.")
    ] = False,
    trace_endpoint: TraceEndpoint = None,
    allow_chaos: AllowChaos = False,
    allow_admin: AllowAdmin = False,
    weights_root: WeightsRoot = None,
    lora: Adapters = None,
    max_loras: MaxAdapters = None,
    max_lora_rank: MaxAdapterRank = 16,
    lora_root: AdaptersRoot = None,
    ray_address: RayAddress = None,
) -> None:
    """Serve a model until SIGTERM or Ctrl-C, then finish what was admitted and exit."""
    values = {
        "grpc_host": host,
        "grpc_port": port,
        "http_host": http_host,
        "http_port": http_port,
        "tls": tls_files(tls_cert, tls_key, tls_client_ca),
        "api_keys_file": str(api_keys.resolve()) if api_keys is not None else None,
        **group_numbers(groups),
        "scale_quiet_seconds": scale_quiet_seconds,
        "scale_idle_seconds": scale_idle_seconds,
        "num_ranks": ranks,
        "device": device,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "weights": weights,
        "cuda_graphs": cuda_graphs,
        "block_size": block_size,
        "num_blocks": blocks,
        "num_host_blocks": host_blocks,
        "kv_memory_bytes": kv_memory_mib * 2**20 if kv_memory_mib is not None else None,
        "threads": threads,
        "max_running": max_running,
        "max_step_tokens": max_step_tokens,
        "max_waiting": max_waiting,
        "preemption": preemption,
        "pipeline_depth": pipeline_depth,
        "speculate": speculate,
        "draft_weights": draft_weights,
        "tool_call_parser": tool_call_parser,
        "reasoning_parser": reasoning_parser,
        "metrics_host": metrics_host,
        "metrics_port": metrics_port,
        "serve_grpc_port": serve_grpc_port,
        "drain_seconds": drain_seconds,
        "trace_endpoint": trace_endpoint,
        "allow_chaos": allow_chaos,
        "allow_admin": allow_admin,
        "weights_root": str(weights_root.resolve()) if weights_root is not None else None,
        "adapters": described_adapters(lora or [], max_lora_rank),
        "max_adapters": max_loras,
        "max_adapter_rank": max_lora_rank,
        "adapters_root": str(lora_root.resolve()) if lora_root is not None else None,
    }
    if api_keys is not None:
        check_api_keys(api_keys)
    if trace_endpoint is not None:
        check_tracing(trace_endpoint)
    with logging_as(log_format, log_level, log_file, log_prompts, ray_address) as logs:
        config = configure(model, ray_address, {**values, "logs": logs}, draft_model)
        _serve_until_asked(config, ray_address)
    typer.echo("stopped", err=True)


def _serve_until_asked(config: "ServeConfig", ray_address: str | None) -> None:
    stop = threading.Event()
    with running(config, ray_address) as deployment:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        places = f"{config.grpc_host}:{config.grpc_port} (gRPC)"
        if config.http_port is not None:
            places += f" and http://{config.http_host}:{config.http_port}/v1 (OpenAI)"
        typer.echo(
            f"serving {config.model.name} on {places}, process {os.getpid()}; "
            'ask it with `blockyard generate "..."`, end with Ctrl-C',
            err=True,
        )
        stop.wait()
        typer.echo("draining: no new requests, live ones finish", err=True)
        if not deployment.drain():
            typer.echo(f"some requests still ran after {config.drain_seconds:g} s", err=True)
