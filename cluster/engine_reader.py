"""One ingress as an engine sees it: its connection, its requests, the news on their way to it."""

from dataclasses import dataclass, field

from blockyard.cluster.messages import IngressToEngine, Updates
from blockyard.cluster.outbox import Outbox
from blockyard.cluster.wire import Connection

__all__ = ["EngineReader"]


@dataclass(slots=True)
class EngineReader:
    """One ingress's connection."""

    connection: Connection[IngressToEngine]
    outbox: Outbox = field(default_factory=Outbox)
    request_ids: set[str] = field(default_factory=set)

    def post_news(self) -> None:
        """Hand what is in the outbox to the connection."""
        updates = self.outbox.take()
        if updates:
            self.connection.post(Updates(updates))
