"""What the request path asks about adapters, as a protocol: which there are, and to change that."""

from typing import Protocol, runtime_checkable

from blockyard.cluster.dispatch import Dispatcher
from blockyard.workers.adapter_description import AdapterDescription

__all__ = ["AdapterDirectory", "adapters_of"]


@runtime_checkable
class AdapterDirectory(Protocol):
    """A dispatcher whose models may be served with adapters."""

    def adapters(self, model: str) -> tuple[AdapterDescription, ...]:
        """Adapters that requests for a model may ask for."""
        ...

    async def load_adapter(self, model: str, adapter: AdapterDescription) -> None:
        """Have all groups of a model serve an adapter.

        Raises:
            RequestRefused: a group cannot; then none does.
        """
        ...

    async def unload_adapter(self, model: str, name: str) -> None:
        """Have no group take requests for an adapter any more; those that run finish first.

        Raises:
            RequestRefused: it could not be told.
        """
        ...


def adapters_of(dispatcher: Dispatcher, model: str) -> tuple[AdapterDescription, ...]:
    """Adapters of a model; none where the dispatcher knows of none."""
    return dispatcher.adapters(model) if isinstance(dispatcher, AdapterDirectory) else ()
