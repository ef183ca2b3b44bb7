"""A group as the central scheduler has it on its books. Units: tokens, seconds."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from blockyard.cluster.messages import Bind, GroupIdentity
from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.prefix_view import PrefixView

__all__ = ["BINDING_SECONDS", "Member"]

BINDING_SECONDS = 1.0
"""A request that was bound is in its group's books long before; if not, it never got there."""


@dataclass(slots=True)
class Member:
    """One engine that has joined."""

    identity: GroupIdentity
    candidate: Candidate
    post: Callable[[object], None]
    """Tells its engine."""
    draining: bool
    prefix: PrefixView
    """Blocks that can be found there."""
    bound_at: float = 0.0
    """When a request was last bound to it."""

    @property
    def is_done(self) -> bool:
        """Whether it drains and nobody is left."""
        requests = self.candidate.ledger.requests
        return self.draining and not (requests.running or requests.waiting or requests.parked)

    @property
    def queues(self) -> bool:
        """Whether anybody waits there."""
        requests = self.candidate.ledger.requests
        return bool(requests.waiting or requests.parked)

    def candidate_for(self, request: Bind) -> Candidate:
        """How it looks to a request: what of its prompt is known there, too."""
        if not request.block_keys or request.block_size != self.identity.block_size:
            return self.candidate
        known = self.prefix.num_known(request.block_keys)
        if not known:
            return self.candidate
        # Every group is looked at for every request: `replace` would take longer than the rest.
        one = self.candidate
        return Candidate(one.group_id, one.ledger, one.bound_tokens, known, one.standing)

    def bind(self, tokens: int, now: float) -> None:
        """So many tokens are on their way there."""
        self.bound_at = now
        bound = self.candidate.bound_tokens + max(0, tokens)
        self.candidate = replace(self.candidate, bound_tokens=bound)

    def forget_bound(self, now: float) -> None:
        """What was bound so long ago, and is not in its books, never got there."""
        if self.candidate.bound_tokens and now - self.bound_at > BINDING_SECONDS:
            self.candidate = replace(self.candidate, bound_tokens=0)
