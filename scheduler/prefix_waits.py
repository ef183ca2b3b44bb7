"""Who waits for a prefix that a running request is computing right now.

Computing it twice would cost a step's tokens and a block more, so an equal prompt waits until the
blocks it shares are published. It waits only for somebody more urgent, and only while that one
gets on. Knows keys and requests; nothing of pools. Units: blocks, steps.
"""

from collections import deque
from dataclasses import dataclass

from blockyard.scheduler.request import Request, RequestState

__all__ = ["PATIENCE_STEPS", "PrefixWaits"]

PATIENCE_STEPS = 8
"""Steps that a request waits for another that publishes nothing meanwhile."""


@dataclass(slots=True, eq=False)
class _Wait:
    """One request's wait for one block."""

    request: Request
    owner: Request
    key: bytes
    owner_published: int
    until: int


class PrefixWaits:
    """Blocks under way by key, and the requests that wait for them.

    A call costs by the blocks and waits it changes, not by how many wait.
    """

    def __init__(self) -> None:
        self._owners: dict[bytes, Request] = {}
        self._waits: dict[tuple[str, int], _Wait] = {}
        self._by_key: dict[bytes, list[_Wait]] = {}
        self._deadlines: deque[_Wait] = deque()

    def __len__(self) -> int:
        """Requests that wait here."""
        return len(self._waits)

    def knows(self, key: bytes) -> bool:
        """Whether somebody computes the block of this key."""
        return key in self._owners

    def members(self) -> tuple[Request, ...]:
        """Everyone who waits here."""
        return tuple(wait.request for wait in self._waits.values())

    def owners(self) -> dict[str, str]:
        """Ids of who waits here, and of who computes what they wait for."""
        return {name: wait.owner.request_id for (name, _), wait in self._waits.items()}

    def announce(self, request: Request) -> None:
        """A running request is about to compute the full blocks of all it knows."""
        chain = request.chain
        if chain is None:
            return
        end = len(request.tokens) // request.table.block_size
        chain.reach(request.tokens, end)
        for key in chain.keys[len(request.path) : end]:
            self._owners.setdefault(key, request)
        request.num_announced = end

    def withdraw(self, request: Request, begin: int, end: int) -> list[Request]:
        """Blocks `begin` up to `end` of a request are published, or will not be computed by it.

        Returns:
            Those who waited for one of them; they wait no longer.
        """
        resumed: list[Request] = []
        end = min(end, request.num_announced)
        if request.chain is None or begin >= end:
            return resumed
        owners, by_key = self._owners, self._by_key
        for key in request.chain.keys[begin:end]:
            if owners.get(key) is not request:
                continue
            del owners[key]
            for wait in by_key.pop(key, ()) if by_key else ():
                if self._waits.get(wait.request.member) is wait:
                    del self._waits[wait.request.member]
                    resumed.append(wait.request)
        return resumed

    def hold(self, request: Request, step: int) -> bool:
        """Let a request wait, if a more urgent one is computing blocks that it needs next.

        `request.path` must be what the index holds of it now. Who was preempted does not wait:
        younger ones might pass it.
        """
        chain = request.chain
        if chain is None or not self._owners or request.patience_over:
            return False
        begin, end = len(request.path), (len(request.tokens) - 1) // request.table.block_size
        if begin >= end or request.state is not RequestState.WAITING:
            return False
        owner = self._owners.get(chain.keys[begin])
        if owner is None or owner.urgency > request.urgency:
            return False
        # Keys are chained: what both share is one run of blocks, so its end is found by halves.
        while end - begin > 1:
            middle = (begin + end) // 2
            if self._owners.get(chain.keys[middle]) is owner:
                begin = middle
            else:
                end = middle
        wait = _Wait(request, owner, chain.keys[begin], len(owner.path), step + PATIENCE_STEPS)
        self._waits[request.member] = wait
        self._by_key.setdefault(wait.key, []).append(wait)
        self._deadlines.append(wait)
        return True

    def remove(self, request_id: str, choice: int = 0) -> Request | None:
        """Take a request out by its id; None when it does not wait here."""
        wait = self._waits.pop((request_id, choice), None)
        return None if wait is None else wait.request

    def expire(self, step: int) -> list[Request]:
        """Those whose patience has ended before `step`; they compute the prefix themselves."""
        expired: list[Request] = []
        while self._deadlines and self._deadlines[0].until < step:
            wait = self._deadlines.popleft()
            request = wait.request
            if self._waits.get(request.member) is not wait:
                continue
            published = len(wait.owner.path)
            if published > wait.owner_published:
                wait.owner_published = published
                wait.until = step + PATIENCE_STEPS
                self._deadlines.append(wait)
            else:
                del self._waits[request.member]
                request.patience_over = True
                expired.append(request)
        return expired

    def check(self) -> None:
        """Prove that everybody who waits here waits for a running request that is more urgent.

        Raises:
            AssertionError: naming the request.
        """
        for key, owner in self._owners.items():
            if owner.state is not RequestState.RUNNING:
                raise AssertionError(
                    f"request {owner.request_id!r} is {owner.state.value}, yet computes {key.hex()}"
                )
        for (request_id, _), wait in self._waits.items():
            if wait.request.state is not RequestState.WAITING:
                raise AssertionError(f"request {request_id!r} waits but is {wait.request.state}")
            if self._owners.get(wait.key) is not wait.owner:
                raise AssertionError(f"request {request_id!r} waits for a block nobody computes")
            if wait not in self._by_key.get(wait.key, ()):
                raise AssertionError(f"request {request_id!r} would never be woken")
            if wait.owner.urgency > wait.request.urgency:
                raise AssertionError(
                    f"request {request_id!r} waits for the less urgent {wait.owner.request_id!r}"
                )
