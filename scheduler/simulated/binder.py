"""Binds arrivals to groups as placement does, without looking at every group each time.

What a group did when it was looked at last tells how it can stand now at best: until something
begins or ends there, it only gets fuller. So groups are looked at in the order of that bound, and
only until no other can be better. Units: simulated seconds, tokens.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from blockyard.scheduler.placement import delay
from blockyard.scheduler.simulated.group import SimulatedGroup

__all__ = ["Binder"]

_Delay = tuple[int, int, int, str]


class Binder:
    """The groups that take requests now. Its owner says when one has changed."""

    def __init__(self, groups: Sequence[SimulatedGroup]) -> None:
        self._groups = groups
        # Bounds in order; those that a later one replaces are void.
        self._bounds: list[tuple[_Delay, int, int]] = []
        self._versions = [0] * len(groups)
        self._open = [False] * len(groups)
        self._changed: set[int] = set()

    def __len__(self) -> int:
        """Bounds that are kept, void ones too."""
        return len(self._bounds)

    def open(self, index: int) -> None:
        """A group takes requests from now on."""
        self._open[index] = True
        self.note(index)

    def close(self, index: int) -> None:
        """A group takes no more."""
        self._open[index] = False
        self.note(index)

    def note(self, index: int) -> None:
        """Something has begun or ended in a group, or come to it."""
        self._versions[index] += 1
        self._changed.add(index)

    @property
    def open_groups(self) -> list[int]:
        """Groups that take requests."""
        return [index for index, is_open in enumerate(self._open) if is_open]

    def choose(
        self, prompt_tokens: int, now: float, known: Mapping[int, int] = MappingProxyType({})
    ) -> int | None:
        """The group for a request of so many tokens; None when none is open.

        Args:
            prompt_tokens: of the request.
            now: when.
            known: open groups in which leading blocks of its prompt can be found, and how many.
        """
        bounds, versions, groups = self._bounds, self._versions, self._groups
        for index in self._changed:
            if self._open[index]:
                bound = delay(groups[index].candidate(now), 0)
                heapq.heappush(bounds, (bound, index, versions[index]))
        self._changed.clear()
        if len(bounds) > 4 * len(groups):
            # Void ones that never come to the front would pile up.
            bounds[:] = [entry for entry in bounds if entry[2] == versions[entry[1]]]
            heapq.heapify(bounds)
        best: tuple[_Delay, int] | None = None
        seen = []
        while bounds:
            bound, index, version = bounds[0]
            if version == versions[index]:
                if best is not None and bound >= best[0]:
                    break
                candidate = groups[index].candidate(now)
                seen.append((delay(candidate, 0), index, version))
                found = delay(candidate, prompt_tokens), index
                if best is None or found < best:
                    best = found
            heapq.heappop(bounds)
        for entry in seen:
            heapq.heappush(bounds, entry)
        # What is known only makes a group better, so the best is among these and the one above.
        for index, num_blocks in known.items():
            candidate = replace(groups[index].candidate(now), known_blocks=num_blocks)
            found = delay(candidate, prompt_tokens), index
            if best is None or found < best:
                best = found
        return None if best is None else best[1]
