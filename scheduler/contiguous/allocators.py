"""Models of servers that give each request one contiguous piece of KV memory.

They hold no memory, only the books of what such a server would do: for comparison in plans, in
replays and beside a live pool. `max_seq_len` reserves the limit, `pow2` rounds up and grows by
moving, `exact` is an oracle that knows the final length. All place by first fit. Every call costs
O(log requests); a growth inside the reservation O(1). Units: token slots.
"""

from abc import ABC, abstractmethod

from blockyard.scheduler.contiguous.books import ContiguousBooks, Refusal
from blockyard.scheduler.contiguous.holes import HoleMap

__all__ = [
    "POLICIES",
    "ContiguousAllocator",
    "ExactAllocator",
    "MaxSeqLenAllocator",
    "PowerOfTwoAllocator",
    "make_allocator",
]


class _Piece:
    """Where one request lies. `final` is the most tokens it will ever hold."""

    __slots__ = ("filled", "final", "size", "start")

    def __init__(self, start: int, size: int, filled: int, final: int) -> None:
        self.start = start
        self.size = size
        self.filled = filled
        self.final = final


class ContiguousAllocator(ABC):
    """One contiguous server's KV memory of `capacity` slots, with requests of up to `limit`."""

    policy: str

    def __init__(self, capacity: int, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit is {limit}; it must be at least 1")
        self.capacity = capacity
        self.limit = limit
        self._holes = HoleMap(capacity)
        self._pieces: dict[str, _Piece] = {}
        self._filled = 0
        self._internal = 0
        self._refusals = 0
        self._refusals_by_fragmentation = 0
        self._moves = 0
        self._moved_slots = 0
        self._first_refusal: Refusal | None = None
        self._first_fragmented: Refusal | None = None

    @abstractmethod
    def reservation(self, num_tokens: int, final_tokens: int) -> int:
        """Slots set aside for a request that holds `num_tokens` and will end at `final_tokens`."""

    def never_used(self, size: int, final_tokens: int) -> int:
        """Slots of a piece of `size` that are rounding: internal fragmentation."""
        return 0

    def __len__(self) -> int:
        """Requests that hold memory."""
        return len(self._pieces)

    def __contains__(self, request_id: str) -> bool:
        """Whether a request holds memory."""
        return request_id in self._pieces

    def fits(self, num_tokens: int, final_tokens: int) -> bool:
        """Whether `allocate` would succeed now. Asking is not a refusal; costs O(1)."""
        return self.reservation(num_tokens, final_tokens) <= self._holes.largest

    def allocate(self, request_id: str, num_tokens: int, final_tokens: int) -> bool:
        """Give a request its piece and fill `num_tokens` of it; False if no hole has room.

        `final_tokens` is what the request will hold in the end, or the most it may. Only `exact`
        reserves by it; `pow2` needs it to tell what of its rounding will never be used.

        Raises:
            ValueError: the request has a piece already, or is longer than the limit.
        """
        if request_id in self._pieces:
            raise ValueError(f"request {request_id} has a piece already; free it first")
        if not 0 <= num_tokens <= final_tokens or not 1 <= final_tokens <= self.limit:
            raise ValueError(
                f"request {request_id} holds {num_tokens} tokens and ends at {final_tokens}; "
                f"need 0 <= held <= end and 1 <= end <= the limit of {self.limit}"
            )
        size = self.reservation(num_tokens, final_tokens)
        start = self._take(size)
        if start is None:
            return False
        self._pieces[request_id] = _Piece(start, size, num_tokens, final_tokens)
        self._filled += num_tokens
        self._internal += self.never_used(size, final_tokens)
        return True

    def grow(self, request_id: str, num_tokens: int = 1) -> bool:
        """Fill `num_tokens` more slots; False, and nothing changed, if there is nowhere to move.

        Raises:
            ValueError: the request would pass its own end.
        """
        piece = self._pieces[request_id]
        filled = piece.filled + num_tokens
        if filled > piece.final:
            raise ValueError(
                f"request {request_id} would hold {filled} tokens but ends at {piece.final}"
            )
        if filled > piece.size and not self._move(piece, filled):
            return False
        piece.filled = filled
        self._filled += num_tokens
        return True

    def free(self, request_id: str) -> None:
        """Take a request's piece back."""
        piece = self._pieces.pop(request_id)
        self._holes.give(piece.start, piece.size)
        self._filled -= piece.filled
        self._internal -= self.never_used(piece.size, piece.final)

    def books(self) -> ContiguousBooks:
        """The counts at this moment; costs O(1)."""
        free = self._holes.total_free
        return ContiguousBooks(
            policy=self.policy,
            capacity=self.capacity,
            running=len(self._pieces),
            filled=self._filled,
            reservation=self.capacity - free - self._filled - self._internal,
            internal=self._internal,
            free=free,
            largest_hole=self._holes.largest,
            num_holes=len(self._holes),
            refusals=self._refusals,
            refusals_by_fragmentation=self._refusals_by_fragmentation,
            moves=self._moves,
            moved_slots=self._moved_slots,
            first_refusal=self._first_refusal,
            first_fragmented=self._first_fragmented,
        )

    def check(self) -> None:
        """Prove: pieces and holes tile the memory, and the counters say what the pieces hold."""
        self._holes.check()
        end = 0
        pieces = [(piece.start, piece.size, name) for name, piece in self._pieces.items()]
        holes = [(start, size, "a hole") for start, size in self._holes]
        for start, size, name in sorted(pieces + holes):
            if start != end:
                raise AssertionError(f"{name} starts at {start}, what is before it ends at {end}")
            end = start + size
        if end != self.capacity:
            raise AssertionError(f"pieces and holes end at {end}, the memory at {self.capacity}")
        for name, piece in self._pieces.items():
            if not 0 <= piece.filled <= min(piece.size, piece.final):
                raise AssertionError(f"{name} fills {piece.filled} of {piece.size} slots")
        if sum(piece.filled for piece in self._pieces.values()) != self._filled:
            raise AssertionError(f"the pieces do not hold {self._filled} tokens")
        internal = sum(self.never_used(p.size, p.final) for p in self._pieces.values())
        if internal != self._internal or self.books().reservation < 0:
            raise AssertionError(f"the pieces have {internal} slots of rounding, not as booked")

    def _take(self, size: int) -> int | None:
        start = self._holes.take(size)
        if start is None:
            allocated = self.capacity - self._holes.total_free
            refusal = Refusal(
                needed=size,
                free=self._holes.total_free,
                largest_hole=self._holes.largest,
                reserved_idle=allocated - self._filled,
                running=len(self._pieces),
            )
            self._refusals += 1
            self._refusals_by_fragmentation += refusal.by_fragmentation
            self._first_refusal = self._first_refusal or refusal
            if refusal.by_fragmentation:
                self._first_fragmented = self._first_fragmented or refusal
        return start

    def _move(self, piece: _Piece, filled: int) -> bool:
        """Take a larger piece, copy, and only then give the old one back: both exist at once."""
        size = self.reservation(filled, piece.final)
        start = self._take(size)
        if start is None:
            return False
        self._holes.give(piece.start, piece.size)
        self._internal += self.never_used(size, piece.final)
        self._internal -= self.never_used(piece.size, piece.final)
        self._moves += 1
        self._moved_slots += piece.filled
        piece.start, piece.size = start, size
        return True


class MaxSeqLenAllocator(ContiguousAllocator):
    """Reserves the limit for every request. All that is not filled is a promise."""

    policy = "max_seq_len"

    def reservation(self, num_tokens: int, final_tokens: int) -> int:
        """The limit, whatever comes."""
        return self.limit


class PowerOfTwoAllocator(ContiguousAllocator):
    """Rounds up to a power of two, no further than the limit, and moves to grow."""

    policy = "pow2"

    def reservation(self, num_tokens: int, final_tokens: int) -> int:
        """The next power of two."""
        return min(1 << max(num_tokens - 1, 0).bit_length(), self.limit)

    def never_used(self, size: int, final_tokens: int) -> int:
        """What lies past the request's end."""
        return max(size - final_tokens, 0)


class ExactAllocator(ContiguousAllocator):
    """Knows every final length beforehand, as no server can: the best a contiguous one could do."""

    policy = "exact"

    def reservation(self, num_tokens: int, final_tokens: int) -> int:
        """The final length."""
        return final_tokens


POLICIES = ("max_seq_len", "pow2", "exact")


def make_allocator(policy: str, capacity: int, limit: int) -> ContiguousAllocator:
    """An allocator of one of `POLICIES` over `capacity` slots, requests of up to `limit`.

    Raises:
        ValueError: no such policy, or numbers below 1.
    """
    for kind in (MaxSeqLenAllocator, PowerOfTwoAllocator, ExactAllocator):
        if kind.policy == policy:
            return kind(capacity, limit)
    raise ValueError(f"policy {policy!r} is not known; give one of {', '.join(POLICIES)}")
