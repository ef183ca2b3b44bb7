"""Blockyard: serves LLMs on a Ray cluster with KV memory given out in exactly counted blocks.

The code lives in the top-level folders `scheduler`, `workers`, `cuda`, `cluster` and `protos`; the
five links beside this file give them their import names. This module stays lazy: importing it
loads none of them; a name below is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockyard.cluster.client import BlockingClient as Client
    from blockyard.cluster.client import GenerationClient as AsyncClient
    from blockyard.cluster.client_request import Settings
    from blockyard.cluster.llm import LLM

__all__ = ["LLM", "AsyncClient", "Client", "Settings", "__version__"]

__version__ = "0.1.0"

_PLACES = {
    "LLM": ("blockyard.cluster.llm", "LLM"),
    "AsyncClient": ("blockyard.cluster.client", "GenerationClient"),
    "Client": ("blockyard.cluster.client", "BlockingClient"),
    "Settings": ("blockyard.cluster.client_request", "Settings"),
}


def __getattr__(name: str) -> object:
    """Load what is asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module 'blockyard' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)
