"""`blockyard serve` and `blockyard demo`: bring a deployment up, keep it or try it, end it clean.

Ray is imported only when a command runs. SIGTERM and Ctrl-C drain: what was admitted finishes.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.cli_errors import EXIT_MISUSED, fail

if TYPE_CHECKING:
    from blockyard.cluster.config import ServeConfig
    from blockyard.cluster.runtime import Deployment

__all__ = ["demo", "serve"]

_DEMO_QUESTION = "What is the capital of France?"

Model = Annotated[
    str,
    typer.Option(
        help="Name, Hugging Face repository, or directory. `witness` needs no model: it proves "
        "block tables instead of answering."
    ),
]
Blocks = Annotated[
    int | None,
    typer.Option(help="Blocks in the pool of each group.", show_default="measured", min=1),
]
Port = Annotated[int, typer.Option(help="Port for gRPC clients.", min=1, max=65535)]


def serve(
    model: Model = "smollm2-135m",
    host: Annotated[str, typer.Option(help="Address to listen on for clients.")] = "127.0.0.1",
    port: Port = 50051,
    groups: Annotated[int, typer.Option(help="Copies of the model.", min=1)] = 1,
    ranks: Annotated[int, typer.Option(help="Workers in each group.", min=1)] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            help="auto, float32, bfloat16 or float16; auto is float32 on a CPU and the "
            "checkpoint's own on a GPU."
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
            "proxy listens on every address of the machine.",
            show_default="off",
            min=1,
            max=65535,
        ),
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(help="Most time for live requests to end at shutdown.", min=0.1)
    ] = 30.0,
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
        "num_groups": groups,
        "num_ranks": ranks,
        "device": device,
        "dtype": dtype,
        "block_size": block_size,
        "num_blocks": blocks,
        "num_host_blocks": host_blocks,
        "kv_memory_bytes": kv_memory_mib * 2**20 if kv_memory_mib is not None else None,
        "threads": threads,
        "max_running": max_running,
        "max_step_tokens": max_step_tokens,
        "max_waiting": max_waiting,
        "metrics_host": metrics_host,
        "metrics_port": metrics_port,
        "serve_grpc_port": serve_grpc_port,
        "drain_seconds": drain_seconds,
    }
    config = _configure(model, ray_address, values)
    stop = threading.Event()
    with _running(config, ray_address) as deployment:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        typer.echo(
            f"serving {config.model.name} on {host}:{port} (gRPC); "
            'ask it with `blockyard generate "..."`, end with Ctrl-C',
            err=True,
        )
        stop.wait()
        typer.echo("draining: no new requests, live ones finish", err=True)
        if not deployment.drain():
            typer.echo(f"some requests still ran after {drain_seconds:g} s", err=True)
    typer.echo("stopped", err=True)


def demo(
    model: Model = "smollm2-135m",
    question: Annotated[str, typer.Option(help="What to ask.")] = _DEMO_QUESTION,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to answer with.", min=1)] = 64,
    blocks: Blocks = None,
) -> None:
    """Start a local cluster, ask one question over gRPC, show the books, stop."""
    started = time.monotonic()
    port = _free_port()
    config = _configure(model, None, {"grpc_port": port, "num_blocks": blocks})
    with _running(config, None) as deployment:
        from blockyard.cluster.client import BlockingClient, Settings, build_request
        from blockyard.cluster.ledger_text import show_ledger

        address = f"{config.grpc_host}:{port}"
        request = build_request(
            messages=[{"role": "user", "content": question}],
            settings=Settings(max_tokens=max_tokens, temperature=0.0),
        )
        typer.echo(f"\n> {question}\n")
        with BlockingClient(address, 120.0) as client:
            last = None
            for last in client.stream(request):
                sys.stdout.write(last.text)
                sys.stdout.flush()
            if last is None:
                raise fail("the server gave no answer")
            typer.echo(
                f"\n\n{last.usage.prompt_tokens} prompt tokens, "
                f"{last.usage.completion_tokens} answer tokens, first after "
                f"{last.timings.first_token_seconds:.2f} s, all after "
                f"{last.timings.total_seconds:.2f} s; "
                f"{time.monotonic() - started:.0f} s since the start\n"
            )
            show_ledger(client.ledger())
        deployment.drain()


def _configure(name: str, ray_address: str | None, values: dict[str, object]) -> "ServeConfig":
    """Find the model's files and check every option before anything is started."""
    from blockyard.cluster.cli_progress import TerminalProgress
    from blockyard.cluster.config import LOOPBACK, ServeConfig
    from blockyard.workers.catalog import WITNESS_MODEL, ModelUnavailable, resolve_model
    from blockyard.workers.config import WorkerKind
    from blockyard.workers.description import ModelFilesError, describe_model

    try:
        with TerminalProgress() as progress:
            directory = resolve_model(name, None, progress)
        public_name = directory.name if os.path.isdir(name) else name
        return ServeConfig(
            model=describe_model(directory, public_name),
            kind=WorkerKind.WITNESS if name == WITNESS_MODEL else WorkerKind.MODEL,
            # A cluster of our own is this machine alone, so its wires stay on loopback.
            wire_host=LOOPBACK if ray_address is None else None,
            **values,  # type: ignore[arg-type]  # checked by the options' own types
        )
    except (ModelUnavailable, ModelFilesError) as error:
        raise fail(str(error)) from None
    except ValueError as error:
        raise fail(str(error), EXIT_MISUSED) from None


@contextmanager
def _running(config: "ServeConfig", ray_address: str | None) -> "Iterator[Deployment]":
    """Bring the deployment up with a progress line, and take it down again."""
    _check_port(config.grpc_host, config.grpc_port, "--port")
    if config.metrics_port is not None:
        _check_port(config.metrics_host, config.metrics_port, "--metrics-port")
    signal.signal(signal.SIGTERM, _exit_cleanly)
    from blockyard.cluster.cli_progress import StageProgress
    from blockyard.cluster.runtime import StartFailed, deploy, ray_cluster

    with StageProgress() as progress:
        progress.stage("starting Ray")
        try:
            with ray_cluster(ray_address):
                signal.signal(signal.SIGTERM, _exit_cleanly)  # Ray has put its own in place
                with deploy(config, progress.stage, ray_address is None) as deployment:
                    progress.close()
                    yield deployment
                    progress.stage("stopping")
        except StartFailed as error:
            raise fail(str(error)) from None
        except ConnectionError as error:
            raise fail(f"no Ray cluster at {ray_address}: {error}") from None


def _exit_cleanly(number: int, frame: FrameType | None) -> None:
    """Before the server is up, SIGTERM just unwinds what was started so far."""
    raise SystemExit(0)


def _check_port(host: str, port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise fail(
                f"cannot listen on {host}:{port} ({error.strerror}); "
                f"stop what runs there or choose another {option}"
            ) from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
