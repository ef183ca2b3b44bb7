"""What an ingress's requests have produced, told to the central scheduler from time to time.

There it counts against the share of each tenant. Knows no wire. Units: tokens, seconds.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from blockyard.cluster.binding.waiting_messages import Spent

__all__ = ["SPENT_SECONDS", "SpentTokens"]

SPENT_SECONDS = 0.1
"""Between two times that it is told."""


class SpentTokens:
    """Adds up what is not told yet. `tell` is given it, and may lose it."""

    def __init__(self, tell: Callable[[Spent], None]) -> None:
        self._tell = tell
        self._spent: Counter[tuple[str, int, str]] = Counter()

    def note(self, model: str, priority: int, tenant: str, tokens: int) -> None:
        """A request of a tenant has ended that produced so many."""
        if not tokens:
            return
        if not self._spent:
            asyncio.get_running_loop().call_later(SPENT_SECONDS, self._flush)
        self._spent[model, priority, tenant] += tokens

    def _flush(self) -> None:
        spent, self._spent = self._spent, Counter()
        for (model, priority, tenant), tokens in spent.items():
            self._tell(Spent(model, priority, tenant, tokens))
