"""`blockyard serve`: keeps a deployment up until SIGTERM or Ctrl-C, which drain it."""

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.commands.log_options import LogFormat, LogLevel, check_tracing, logging_as
from blockyard.cluster.commands.start import (
    Blocks,
    Groups,
    Model,
    Port,
    TlsFile,
    check_api_keys,
    configure,
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
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help="File of API keys, a line each: TENANT KEY [MOST LIVE REQUESTS]. Callers show one "
            "as `Authorization: Bearer KEY`.",
            show_default="everybody may call",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
    tls_cert: TlsFile = None,
    tls_key: TlsFile = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            help="Ask clients for a certificate that this one has signed.",
            show_default="off",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
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
    dtype: Annotated[
        str,
        typer.Option(
            help="auto, float32, bfloat16 or float16; auto is float32 on a CPU and the "
            "checkpoint's own on a GPU."
        ),
    ] = "auto",
    kv_dtype: Annotated[
        str,
        typer.Option(
            help="What keys and values are kept in: auto (as computed), bfloat16, int8 (on a CPU) "
            "or fp8 (on a GPU): fewer bytes a block, more blocks."
        ),
    ] = "auto",
    weights: Annotated[
        str,
        typer.Option(
            help="How a CPU keeps weights: auto (fp32), fp32, bf16, int8 or int4; sums are float32."
        ),
    ] = "auto",
    block_size: Annotated[int, typer.Option(help="Token slots in a block.", min=1)] = 16,
    blocks: Blocks = None,
    host_blocks: Annotated[
        int | None,
        typer.Option(
            help="Blocks of each group in host memory, for requests that are swapped out; 0 turns "
            "swapping off.",
            show_default="from the device",
            min=0,
        ),
    ] = None,
    kv_memory_mib: Annotated[
        int | None,
        typer.Option(
            help="Memory of a rank for KV blocks, when they are measured.",
            show_default="from the device",
            min=1,
        ),
    ] = None,
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
    pipeline_depth: Annotated[
        int,
        typer.Option(
            help="Steps in flight at once. With 2 a step is planned while the one before it runs: "
            "the device never waits for a plan, a newcomer waits a step longer. See `blockyard "
            "bench pipeline`.",
            min=1,
            max=2,
        ),
    ] = 1,
    speculate: Annotated[
        Speculation,
        typer.Option(
            help="Guess next tokens and check them in one step: ngram takes what followed the "
            "newest ones before. Answers stay the same."
        ),
    ] = Speculation.OFF,
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
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Offer the books to Prometheus at /metrics on this port.",
            show_default="off",
            min=1,
            max=65535,
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="Address to listen on for Prometheus.")
    ] = "127.0.0.1",
    serve_grpc_port: Annotated[
        int | None,
        typer.Option(
            help="Also offer the services behind Ray Serve's own gRPC proxy, on this port; that "
            "proxy listens on every address of the machine, and it may miss that a client left "
            "its stream: such a request runs to its last token.",
            show_default="off",
            min=1,
            max=65535,
        ),
    ] = None,
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
    trace_endpoint: Annotated[
        str | None,
        typer.Option(
            envvar="BLOCKYARD_TRACE_ENDPOINT",
            help="Send spans of requests to this OTLP endpoint, such as "
            "http://127.0.0.1:4318/v1/traces; needs the extra `trace`.",
            show_default="off",
        ),
    ] = None,
    allow_chaos: Annotated[
        bool,
        typer.Option(
            "--allow-chaos",
            help="Let anybody who reaches the gRPC port kill and stop processes of this cluster: "
            "for tests, see `blockyard chaos`.",
        ),
    ] = False,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="Address of a running Ray cluster, or `auto`.",
            show_default="start one on this machine",
        ),
    ] = None,
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
        "tool_call_parser": tool_call_parser,
        "reasoning_parser": reasoning_parser,
        "metrics_host": metrics_host,
        "metrics_port": metrics_port,
        "serve_grpc_port": serve_grpc_port,
        "drain_seconds": drain_seconds,
        "trace_endpoint": trace_endpoint,
        "allow_chaos": allow_chaos,
    }
    if api_keys is not None:
        check_api_keys(api_keys)
    if trace_endpoint is not None:
        check_tracing(trace_endpoint)
    with logging_as(log_format, log_level, log_file, log_prompts, ray_address) as logs:
        config = configure(model, ray_address, {**values, "logs": logs})
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
