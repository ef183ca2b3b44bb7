"""A group as the central scheduler has it on its books. Units: tokens, places, seconds."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

from blockyard.cluster.messages import Bind, GroupIdentity
from blockyard.scheduler.group_board import LEAST_LEAD, next_lead
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.prefix_view import PrefixView
from blockyard.scheduler.standing import Standing

__all__ = ["BINDING_SECONDS", "Member"]

BINDING_SECONDS = 1.0
"""A request that was bound is in its group's books long before; if not, it never got there."""


def _nobody(member: "Member") -> None:
    pass


@dataclass(slots=True)
class Member:
    """One engine that has joined."""

    identity: GroupIdentity
    _candidate: Candidate
    post: Callable[[object], None]
    """Tells its engine."""
    draining: bool
    prefix: PrefixView
    """Blocks that can be found there."""
    bound_at: float = 0.0
    """When a request was last bound to it."""
    lead: int = LEAST_LEAD
    """Requests that its own queue may hold while others wait for any group."""
    changed: Callable[[Self], None] = field(default=_nobody)
    """Told when it stands otherwise than before."""

    def __post_init__(self) -> None:
        """Feed it no further ahead than its own queue may grow."""
        self._bound_lead()

    @property
    def candidate(self) -> Candidate:
        """How it stands, as far as its books and what was bound since tell."""
        return self._candidate

    @candidate.setter
    def candidate(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self.changed(self)

    @property
    def takes_requests(self) -> bool:
        """Whether it is awake and stays."""
        return not self.draining and not self.identity.resting

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
        return replace(self.candidate, known_blocks=known) if known else self.candidate

    def take_books(
        self, ledger: GroupLedger, standing: Standing | None, others_wait: bool = False
    ) -> None:
        """Its engine tells how it stands; `others_wait`: for any group, outside of all."""
        before = self._candidate
        candidate = Candidate(
            before.group_id, ledger, standing=standing, places=self.identity.places
        )
        self.lead = next_lead(self.lead, before, candidate, others_wait)
        self._bound_lead()
        self.candidate = candidate

    def bind(self, tokens: int, now: float, places: int = 0, waits: bool = False) -> None:
        """So many tokens are on their way there, for so many places or to its queue."""
        self.bound_at = now
        one = self._candidate
        # Not by `replace`, which would take longer than all else that a binding takes.
        self.candidate = Candidate(
            one.group_id,
            one.ledger,
            one.bound_tokens + max(0, tokens),
            0,
            one.standing,
            one.places,
            one.bound_places if waits else one.bound_places + places,
            one.bound_waiting + waits,
        )

    def _bound_lead(self) -> None:
        if self.identity.max_waiting:
            self.lead = min(self.lead, max(1, self.identity.max_waiting // 2))

    @property
    def has_bound(self) -> bool:
        """Whether anything was bound that its books do not tell of yet."""
        one = self._candidate
        return bool(one.bound_tokens or one.bound_places or one.bound_waiting)

    def forget_bound(self, now: float) -> None:
        """What was bound so long ago, and is not in its books, never got there."""
        if self.has_bound and now - self.bound_at > BINDING_SECONDS:
            one = self._candidate
            self.candidate = Candidate(
                one.group_id, one.ledger, standing=one.standing, places=one.places
            )
