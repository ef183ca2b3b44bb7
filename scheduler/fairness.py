"""A fair share of one priority class for each tenant, by tokens that were really computed.

A counter for each tenant (the virtual token counter of Sheng et al. 2023, "Fairness in Serving
Large Language Models"): what is computed for a tenant is charged to it, and the least charged
tenant that waits is served next. A token found in the prefix index was not computed and costs
nothing; a token computed again after a preemption is charged again. A tenant that was away saves
nothing up: it comes back no lower than the least charged that waits. Nor does it lose what it
owes. Knows tenants by name only. Units: charged tokens, of which a decoded one is two.

Two tenants that both wait all the time differ by at most what one of them can have under way:
whoever is ahead is not served until the other has caught up.
"""

from collections.abc import Collection

__all__ = ["DECODE_WEIGHT", "TenantCounters"]

DECODE_WEIGHT = 2
"""A decoded token against a prefilled one: it reads all weights and its whole context alone."""

_FEWEST_REMEMBERED = 64
"""Tenants that are remembered before the idle ones that owe nothing are looked for."""


class TenantCounters:
    """Counters of the tenants of one priority class."""

    def __init__(self) -> None:
        self._charged: dict[str, int] = {}
        # What a tenant never seen, or seen long ago, starts from; never falls.
        self._level = 0
        self._last: str | None = None
        self._sweep_at = _FEWEST_REMEMBERED

    @property
    def contended(self) -> bool:
        """Whether charges can matter: more than one tenant is known."""
        return len(self._charged) > 1

    @property
    def num_tenants(self) -> int:
        """Tenants that are remembered."""
        return len(self._charged)

    def charged(self, tenant: str) -> int:
        """What a tenant has been charged."""
        return self._charged.get(tenant, self._level)

    def arrive(self, tenant: str, waiting: Collection[str], least: str | None = None) -> None:
        """A new request comes; `waiting` are the tenants that have one waiting already.

        Those who wait keep what they have. Another is lifted to the least of them, which is `least`
        where the caller knows; when nobody waits, to the one who waited last.
        """
        if tenant not in waiting:
            if waiting:
                lowest = min(map(self.charged, waiting)) if least is None else self.charged(least)
                self._level = max(self._level, lowest)
            elif self._last is not None:
                self._level = max(self._level, self.charged(self._last))
            self._charged[tenant] = max(self.charged(tenant), self._level)
        if len(self._charged) > self._sweep_at:
            self._forget_idle({*waiting, tenant})

    def charge(self, tenant: str, prefill_tokens: int, decode_tokens: int) -> None:
        """Tokens are computed for a tenant."""
        cost = prefill_tokens + DECODE_WEIGHT * decode_tokens
        if cost < 0:
            raise ValueError(f"tenant {tenant!r} is charged {cost} tokens")
        self._charged[tenant] = self.charged(tenant) + cost

    def left(self, tenant: str) -> None:
        """The last request of a tenant has left the queue."""
        self._last = tenant

    def _forget_idle(self, waiting: Collection[str]) -> None:
        """Drop those who would come back at the level anyway; then those who owe least.

        So a client that makes up tenants costs a bounded memory.
        """
        kept = {
            name: charged
            for name, charged in self._charged.items()
            if charged > self._level or name in waiting
        }
        most = len(waiting) + _FEWEST_REMEMBERED
        if len(kept) > most:
            by_debt = sorted(kept, key=lambda name: (name in waiting, kept[name]))
            for name in by_debt[: len(kept) - most]:
                del kept[name]
        self._charged = kept
        self._sweep_at = 2 * len(kept) + _FEWEST_REMEMBERED
