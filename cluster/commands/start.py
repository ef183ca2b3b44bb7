"""What `serve` and `demo` share: find the model, check the options, start and stop a deployment.

Ray is imported only when something is started. Units are in the names.
"""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.commands.errors import EXIT_MISUSED, fail

if TYPE_CHECKING:
    from blockyard.cluster.config import ServeConfig
    from blockyard.cluster.runtime import Deployment
    from blockyard.cluster.tls import TlsFiles
    from blockyard.workers.adapter_description import AdapterDescription

__all__ = [
    "Blocks",
    "Groups",
    "Model",
    "Port",
    "TlsFile",
    "check_api_keys",
    "configure",
    "described_adapters",
    "free_port",
    "group_numbers",
    "running",
    "tls_files",
]

_RAY_ANSWER_SECONDS = 5.0

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
Groups = Annotated[
    str,
    typer.Option(
        help="Copies of the model; MIN:MAX lets their number follow the load, a MIN of 0 down to "
        "none.",
        metavar="N|MIN:MAX",
    ),
]
TlsFile = Annotated[
    Path | None,
    typer.Option(
        help="File in PEM format: the certificate, or its key, of the listeners for clients.",
        show_default="no TLS",
        exists=True,
        dir_okay=False,
    ),
]
Port = Annotated[int, typer.Option(help="Port for gRPC clients.", min=1, max=65535)]


def configure(
    name: str, ray_address: str | None, values: dict[str, object], draft: str | None = None
) -> "ServeConfig":
    """Find the files of the model, and of the one that guesses; check every option before anything
    is started."""
    from blockyard.cluster.commands.progress import TerminalProgress
    from blockyard.cluster.config import LOOPBACK, ServeConfig
    from blockyard.workers.catalog import WITNESS_MODEL, ModelUnavailable, resolve_model
    from blockyard.workers.config import WorkerKind
    from blockyard.workers.description import ModelFilesError, describe_model
    from blockyard.workers.draft_description import find_draft

    kind = WorkerKind.WITNESS if name == WITNESS_MODEL else WorkerKind.MODEL
    try:
        with TerminalProgress() as progress:
            directory = resolve_model(name, None, progress)
            model = describe_model(directory, directory.name if os.path.isdir(name) else name)
            guesses = find_draft(draft, kind, model, progress) if draft is not None else None
        return ServeConfig(
            model=model,
            kind=kind,
            draft=guesses,
            # A cluster of our own is this machine alone, so its wires stay on loopback.
            wire_host=LOOPBACK if ray_address is None else None,
            **values,  # type: ignore[arg-type]  # checked by the options' own types
        )
    except (ModelUnavailable, ModelFilesError) as error:
        raise fail(str(error)) from None
    except ValueError as error:
        raise fail(str(error), EXIT_MISUSED) from None


def group_numbers(text: str) -> dict[str, object]:
    """The option `--groups`, in the names of `ServeConfig`."""
    few, colon, most = text.partition(":")
    try:
        if colon:
            return {"min_groups": int(few), "max_groups": int(most)}
        return {"num_groups": int(text)}
    except ValueError:
        raise fail(f"--groups is {text!r}; give a number, or MIN:MAX", EXIT_MISUSED) from None


def tls_files(
    certificate: Path | None, key: Path | None, client_ca: Path | None
) -> "TlsFiles | None":
    """The files of TLS, proved to be of use; None without any."""
    from blockyard.cluster.tls import TlsFiles

    if certificate is None or key is None:
        if (certificate, key, client_ca) != (None, None, None):
            raise fail("TLS needs both --tls-cert and --tls-key", EXIT_MISUSED)
        return None
    files = TlsFiles(
        str(certificate.resolve()),
        str(key.resolve()),
        str(client_ca.resolve()) if client_ca is not None else None,
    )
    try:
        files.check()
    except (OSError, ValueError) as error:
        raise fail(str(error), EXIT_MISUSED) from None
    return files


def described_adapters(words: list[str], max_rank: int) -> "tuple[AdapterDescription, ...]":
    """What the files of adapters named by NAME=PATH say."""
    from blockyard.cluster.adapters.named_adapters import named_adapters, parse_adapters

    try:
        return named_adapters(parse_adapters(words), max_rank)
    except ValueError as error:
        raise fail(str(error), EXIT_MISUSED) from None


def check_api_keys(file: Path) -> None:
    """Refuse a file of API keys that an ingress could not use, before anything is started."""
    from blockyard.cluster.request.api_keys import read_api_keys

    try:
        read_api_keys(file)
    except (OSError, ValueError) as error:
        raise fail(str(error), EXIT_MISUSED) from None


@contextmanager
def running(config: "ServeConfig", ray_address: str | None) -> "Iterator[Deployment]":
    """Bring the deployment up with a progress line, and take it down again."""
    _check_port(config.grpc_host, config.grpc_port, "--port")
    if config.http_port is not None:
        _check_port(config.http_host, config.http_port, "--http-port")
    if config.metrics_port is not None:
        _check_port(config.metrics_host, config.metrics_port, "--metrics-port")
    if ray_address is not None and ":" in ray_address:
        _check_ray(ray_address)
    signal.signal(signal.SIGTERM, _exit_cleanly)
    from blockyard.cluster.commands.progress import StageProgress
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
        except SystemExit:
            # Ray's own handler exits with the signal's number; ended as asked is no failure.
            raise SystemExit(0) from None


def _exit_cleanly(number: int, frame: FrameType | None) -> None:
    """Before the server is up, SIGTERM just unwinds what was started so far."""
    raise SystemExit(0)


def _check_ray(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), _RAY_ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        raise fail(
            f"no Ray cluster answers at {address} ({error}); give the head node's HOST:PORT, or "
            "leave out --ray-address to start one on this machine"
        ) from None


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


def free_port() -> int:
    """A port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
