"""One search as its scheduler carries it: who computes for which beam, and what they have found.

A value without rules; `searches.py` has them.
"""

from dataclasses import dataclass, field

from blockyard.scheduler.beam_search import BeamSearch
from blockyard.scheduler.request import Request
from blockyard.scheduler.sampling import TokenLogprobs

__all__ = ["SearchRound"]


@dataclass(slots=True)
class SearchRound:
    """A search, and the round that it is in.

    Attributes:
        search: what it has found so far.
        members: who computes for each beam, the best first.
        wanted: places among the best whose answers the client still wants, from 0.
        found: what those members have found that are held, by their choice.
    """

    search: BeamSearch
    members: list[Request]
    wanted: set[int]
    found: dict[int, TokenLogprobs] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all have found what follows their beam."""
        return len(self.found) == len(self.members)
