"""What each tenant has under way in one group, for whoever charges tenants and must learn it anew.

Prompts alone: a token of an answer is charged when the answer has ended. Units: tokens.
"""

from collections import Counter
from dataclasses import dataclass

from blockyard.scheduler.scheduler import Scheduler

__all__ = ["UnderWay", "under_way"]


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Of one tenant's requests of one priority that have not ended.

    Attributes:
        priority: of the requests.
        tenant: whose they are.
        tokens: of their prompts that were computed for them, or will be: not found in the cache.
    """

    priority: int
    tenant: str
    tokens: int


def under_way(scheduler: Scheduler) -> tuple[UnderWay, ...]:
    """Of everybody who is served."""
    tokens: Counter[tuple[int, str]] = Counter()
    for request_id in scheduler.roster.request_ids:
        members = scheduler.roster.members(request_id)
        spec = members[0].spec
        # The choice that looked the prompt up may have ended; those that it forked say the same.
        found = max(member.cached_tokens for member in members)
        tokens[spec.priority, spec.tenant] += len(spec.prompt_token_ids) - found
    return tuple(UnderWay(*whose, count) for whose, count in tokens.items())
