"""What Ray Serve is told to deploy, as the file that `serve deploy` takes.

Only puts values where they belong; what they mean is in `ServeConfig`. Units are in the names.
"""

from collections.abc import Mapping
from typing import Any

from blockyard.cluster.app import APP_NAME
from blockyard.cluster.config import LOOPBACK
from blockyard.cluster.runtime import SERVICERS
from blockyard.cluster.service import OWN_OF_A_MODEL, SHARED

__all__ = ["serve_config"]


def serve_config(
    model: str, device: str, values: Mapping[str, Any], name: str | None = None
) -> dict[str, Any]:
    """One model's deployment, with `values` in the names of `ServeConfig`.

    Raises:
        ValueError: a name is unknown, or one of those that the file says otherwise.
    """
    unknown = sorted(set(values) - OWN_OF_A_MODEL - SHARED)
    if unknown:
        known = ", ".join(sorted(OWN_OF_A_MODEL | SHARED))
        raise ValueError(f"unknown: {', '.join(unknown)}; known are {known}")
    own = {"model": model, "device": device} | ({"name": name} if name else {})
    own |= {key: value for key, value in values.items() if key in OWN_OF_A_MODEL}
    shared = {key: value for key, value in values.items() if key in SHARED}
    proxied = shared.get("serve_grpc_port") is not None
    return {
        **(_proxies(shared) if proxied else _NO_PROXIES),
        "logging_config": {"log_level": "INFO", "enable_access_log": False},
        "applications": [
            {
                "name": APP_NAME,
                "import_path": "blockyard.cluster.service:build",
                # Proxies know of applications that have a route, and of no others.
                "route_prefix": "/" if proxied else None,
                "args": {"models": [own], **shared},
            }
        ],
    }


_NO_PROXIES = {"proxy_location": "Disabled", "http_options": {"host": LOOPBACK}}


def _proxies(shared: Mapping[str, Any]) -> dict[str, Any]:
    """Serve's proxies on every node, which must reach ingresses on others."""
    port = shared["serve_grpc_port"]
    return {
        "proxy_location": "EveryNode",
        # Nobody uses their HTTP side; its own default may be the port of the ingress's.
        "http_options": {"host": shared.get("grpc_host", LOOPBACK), "port": port + 1},
        "grpc_options": {"port": port, "grpc_servicer_functions": list(SERVICERS)},
    }
