"""Starts and stops what `blockyard serve` needs: Ray, Serve, the application, and a clean end.

Owns only what it started: a cluster it merely connected to is left running. Progress is told to
an observer; nothing here prints.
"""

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.serve.config import HTTPOptions, ProxyLocation, gRPCOptions
from ray.serve.schema import ApplicationStatus, LoggingConfig

from blockyard.cluster.actors import NAMESPACE, central_actor
from blockyard.cluster.app import APP_NAME, ServedModel, build_app
from blockyard.cluster.config import LOOPBACK, ServeConfig

__all__ = ["SERVICERS", "Deployment", "StartFailed", "deploy", "ray_cluster"]

_POLL_SECONDS = 0.2
_OBJECT_STORE_BYTES = 128 * 1024 * 1024
"""Tokens and plans go over our own wire; Ray's object store carries start-up calls only."""
_CALM = {
    # Replicas report counters that we do not use; 100 ms by default.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
    # Serve looks after its replicas; 0.1 s by default. A start is noticed this much later.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.3",
    # A proxy that is not up in so many seconds is killed, thrice, and no start survives that; by
    # default 5, which on a busy machine goes by while its process loads.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
}
"""How Serve's own loops run in a cluster of ours, unless the environment says otherwise: at their
defaults they take more of an idle machine than all of Blockyard does."""
SERVICERS = (
    "blockyard.cluster.grpc_handlers.add_generation_to_server",
    "blockyard.cluster.grpc_handlers.add_cluster_to_server",
    "blockyard.cluster.grpc_handlers.add_health_to_server",
)
"""What Ray Serve's gRPC proxy is told to offer."""

_TALKATIVE_LOGGERS = (
    "ray._private.authentication.authentication_token_setup",
    "ray.serve",
)
"""They tell a user of `blockyard serve` what is none of their concern."""


class StartFailed(Exception):
    """The deployment did not come up; the message says why and what to do."""


@contextmanager
def ray_cluster(address: str | None) -> Iterator[None]:
    """Connect to a running cluster, or start one on loopback that ends with this context.

    Raises:
        ConnectionError: there is no cluster at `address`.
        StartFailed: Ray could not be started here.
    """
    for name in _TALKATIVE_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging_level = logging.getLogger("blockyard").getEffectiveLevel()
    if address is not None:
        ray.init(address=address, namespace=NAMESPACE, logging_level=logging_level)
    else:
        for name, value in _CALM.items():
            os.environ.setdefault(name, value)  # what Ray starts inherits it
        _start_ray(logging_level)
    try:
        yield
    finally:
        ray.shutdown()


def _start_ray(logging_level: int) -> None:
    try:
        ray.init(
            # Without this Ray would look for a cluster that somebody else has started here.
            address="local",
            # Ray counts logical CPUs: a rank takes one, and engine and ingress a little each.
            num_cpus=max(4, os.cpu_count() or 1),
            namespace=NAMESPACE,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            logging_level=logging_level,
            log_to_driver=False,
        )
    except Exception as error:
        # Ray has no type for it: its processes did not come up within times that it sets itself.
        ray.shutdown()
        reason = str(error).partition("\n")[0]
        raise StartFailed(
            f"Ray did not start: {reason} If this machine is busy, try again; Ray's own logs are "
            "in /tmp/ray/session_latest/logs"
        ) from error


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running application."""

    config: ServeConfig

    def drain(self) -> bool:
        """Stop admitting and wait for live requests; False when some still ran at the end."""
        timeout = self.config.drain_seconds
        central = central_actor(self.config)
        try:
            return bool(ray.get(central.drain.remote(timeout), timeout=timeout + 10))
        except (RayActorError, GetTimeoutError):
            # It is restarting. Each group drains by itself as well, when it is taken down.
            return False


@contextmanager
def deploy(
    config: ServeConfig, observe: Callable[[str], None], owns_cluster: bool
) -> Iterator[Deployment]:
    """Deploy and wait until it serves; take it down again at the end of the context.

    `observe` is told each stage of the start, in words.

    Raises:
        StartFailed: a replica could not start.
    """
    uses_gpu = _uses_gpu(config)
    observe("starting Ray Serve")
    proxied = config.serve_grpc_port is not None
    try:
        serve.start(
            proxy_location=ProxyLocation.EveryNode if proxied else ProxyLocation.Disabled,
            # Nobody uses the proxy's HTTP side, so it takes any free port instead of a known one.
            http_options=HTTPOptions(
                host=_proxy_host(owns_cluster), port=_free_port() if proxied else 0
            ),
            grpc_options=gRPCOptions(
                port=config.serve_grpc_port or 9000, grpc_servicer_functions=list(SERVICERS)
            )
            if proxied
            else None,
            logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False),
        )
    except (RayError, TimeoutError) as error:
        # Ray has no type for it: its proxies did not come up within times that it sets itself.
        raise StartFailed(
            f"Ray Serve did not start: {str(error).partition(chr(10))[0]} If this machine is busy, "
            "try again; Ray's own logs are in /tmp/ray/session_latest/logs"
        ) from error
    central = central_actor(config)
    try:
        serve.run_many(
            [
                serve.RunTarget(
                    build_app((ServedModel(config, uses_gpu),)),
                    name=APP_NAME,
                    # The proxy knows of applications that have a route, and of no others.
                    route_prefix="/" if proxied else None,
                    logging_config=LoggingConfig(log_level="INFO", enable_access_log=False),
                )
            ],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        _wait_until_running(central, observe)
        yield Deployment(config)
    finally:
        # Deleting runs the replicas' drains. Serve itself ends with a cluster of our own; on
        # somebody's cluster it goes only if nothing else uses it.
        serve.delete(APP_NAME)
        if not owns_cluster and not serve.status().applications:
            serve.shutdown()
        ray.kill(central, no_restart=True)


def _proxy_host(owns_cluster: bool) -> str:
    """Where Serve listens for what its proxies pass on.

    HAProxy connects to replicas of other nodes, which nobody can who listens on loopback. Serve's
    own proxy reaches them through Ray, and a cluster of our own is this machine alone.
    """
    haproxy = os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"
    return "0.0.0.0" if haproxy and not owns_cluster else LOOPBACK


def _free_port() -> int:
    """One that nothing listens on; HAProxy, unlike the proxy in Python, takes no 0 for it."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_running(central: Any, observe: Callable[[str], None]) -> None:
    while True:
        application = serve.status().applications.get(APP_NAME)
        status = application.status if application is not None else None
        if status is ApplicationStatus.RUNNING:
            observe("ready")
            return
        if application is not None and status in (
            ApplicationStatus.DEPLOY_FAILED,
            ApplicationStatus.UNHEALTHY,
        ):
            messages = [deployment.message for deployment in application.deployments.values()]
            raise StartFailed(_cause([application.message, *messages]))
        stage, failure = ray.get(central.start_state.remote())
        if failure:
            # Serve would try again and again; whoever is starting it wants to know.
            raise StartFailed(f"a group did not come up: {failure}")
        if stage:
            observe(stage)
        time.sleep(_POLL_SECONDS)


def _cause(messages: list[str]) -> str:
    """What a person needs of Serve's account of a failed start: the exception at its end."""
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    errors = [
        line
        for line in lines
        if re.match(r"[\w.]+(Error|Exception): ", line) and "Traceback" not in line
    ]
    cause = errors[-1] if errors else (lines[-1] if lines else "no cause was given")
    return f"the deployment did not come up: {cause}"


def _uses_gpu(config: ServeConfig) -> bool:
    """Whether ranks need a GPU each: asked for, or there are enough in the cluster."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    needed = config.first_groups * config.num_ranks
    if config.device == "cuda" and gpus < needed:
        raise StartFailed(
            f"--device cuda: GPUs needed: {needed}, in the cluster: {gpus}; "
            "add nodes, or lower --groups or --ranks, or use --device cpu"
        )
    return config.device == "cuda" or (config.device == "auto" and gpus >= needed)
