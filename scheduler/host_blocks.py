"""Blocks saved in host memory for requests that lost their place, and the moves there and back.

A host block is written by one plan and read back by a later one; like a device block it is given
out again only when every rank has finished the step that touched it last. Blocks of a *parcel* are
on their way to another group, or from one: they are nobody's here until whoever carries them says
that no rank touches them any more. Knows nothing of why blocks are saved. Units: blocks, steps.
"""

from collections.abc import Iterable, Sequence

from blockyard.scheduler.block_pool import BlockPool
from blockyard.scheduler.ledger import BlockCounts, MoveCounts, add_counts
from blockyard.scheduler.plan import BlockCopy
from blockyard.scheduler.request import Request

__all__ = ["HostBlocks"]


class HostBlocks:
    """The host pool, and the block moves of the plan being made."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._pool = BlockPool(num_blocks, block_size) if num_blocks else None
        self._outs: dict[int, BlockCopy] = {}
        self._ins: list[BlockCopy] = []
        # Step in which each host block was, or will be, written; absent while its copy is pending.
        self._written: dict[int, int] = {}
        self._aside: tuple[int, ...] = ()
        self._parcels: dict[bytes, list[int]] = {}
        self._awaited: set[bytes] = set()
        self.moves = MoveCounts()
        """What went with requests to other groups, and came with them."""
        self.wire_bytes_per_second = 0.0
        """At which it came last, to each rank; 0: nothing has come yet."""
        self.num_saved = 0
        """Blocks ever copied out."""
        self.num_restored = 0
        """Blocks ever copied back."""

    @property
    def num_available(self) -> int:
        """Host blocks that can be had now."""
        return self._pool.num_available if self._pool is not None else 0

    @property
    def num_pending_outs(self) -> int:
        """Blocks that the plan being made saves already."""
        return len(self._outs)

    def save(self, request: Request, first: int, block_ids: Sequence[int]) -> bool:
        """Copy device blocks out; they are a request's blocks from index `first` on.

        They come before those that it has here already, without a gap. When there is no room for
        them the last of those make some: what comes before is worth more.

        Returns:
            False if there is no room for all of them even so.
        """
        if self._pool is None:
            return False
        missing = len(block_ids) - self._pool.num_available
        if missing > len(request.host_ids):
            return False
        while missing > 0:
            self._let_go(request.host_ids.pop())
            missing -= 1
        host_ids = self._pool.allocate(len(block_ids))
        if host_ids is None:
            return False  # a step may still touch what made room
        for source, destination in zip(block_ids, host_ids, strict=True):
            self._outs[destination] = BlockCopy(source, destination)
        request.host_ids[:0] = host_ids
        request.host_start = first
        self.num_saved += len(host_ids)
        return True

    def num_restorable(self, request: Request, base: int) -> int:
        """Blocks here that continue a request's first `base` blocks without a gap."""
        end = request.host_start + len(request.host_ids)
        return max(0, end - base) if request.host_start <= base else 0

    def restore(self, request: Request, block_ids: Sequence[int], step: int) -> None:
        """Copy a request's last blocks back into these device blocks, and let go of all it has."""
        first = len(request.host_ids) - len(block_ids)
        back = request.host_ids[first:]
        del request.host_ids[first:]
        self._ins += map(BlockCopy, back, block_ids)
        self.num_restored += len(back)
        for host_id in back:
            self._release(host_id, step)
        self.drop(request)

    def drop(self, request: Request) -> None:
        """Let go of all that a request has here; a second call finds nothing."""
        for host_id in request.host_ids:
            self._let_go(host_id)
        request.host_ids.clear()
        request.host_start = 0

    @property
    def owes_parcels(self) -> bool:
        """Whether the next plan must save blocks that another group waits for."""
        return any(host_id in self._outs for ids in self._parcels.values() for host_id in ids)

    @property
    def num_awaited(self) -> int:
        """Parcels on their way here."""
        return len(self._awaited)

    def consign(self, key: bytes, request: Request) -> int:
        """Let all that a request has here be the parcel `key`; how many blocks that is."""
        self._parcels[key] = list(request.host_ids)
        request.host_ids.clear()
        request.host_start = 0
        return len(self._parcels[key])

    def written(self, key: bytes) -> tuple[int, ...] | None:
        """A parcel's blocks, once every rank has written them; None until then."""
        host_ids = self._parcels.get(key, ())
        done = self._pool.acknowledged if self._pool is not None else 0
        if any(h in self._outs or self._written[h] > done for h in host_ids):
            return None
        return tuple(host_ids)

    def await_parcel(self, key: bytes, count: int) -> tuple[int, ...] | None:
        """Blocks for a parcel that comes; None if there is no room for all of them.

        Nor are there any for one that is here already: its blocks would be forgotten.
        """
        if self._pool is None or key in self._parcels:
            return None
        host_ids = self._pool.allocate(count)
        if host_ids is not None:
            self._parcels[key] = list(host_ids)
            self._awaited.add(key)
            self._written.update(dict.fromkeys(host_ids, 0))  # by no step
        return host_ids

    def hand_over(self, key: bytes, request: Request, first: int, count: int) -> None:
        """Let a request have a parcel's first blocks as those of its own from index `first` on."""
        host_ids = self._parcels[key]
        request.host_ids, self._parcels[key] = host_ids[:count], host_ids[count:]
        request.host_start = first
        self.discard(key)

    def discard(self, key: bytes) -> None:
        """No rank touches a parcel's blocks any more; a second call finds nothing."""
        self._awaited.discard(key)
        for host_id in self._parcels.pop(key, ()):
            self._let_go(host_id)

    def note_moves(self, more: MoveCounts) -> None:
        """Count what has gone to other groups or come from them."""
        self.moves = add_counts(self.moves, more)

    def set_aside(self) -> int:
        """Hold all blocks that can be had now for nobody, until `give_back`; how many those are."""
        count = self.num_available
        if self._pool is not None and count:
            self._aside += tuple(self._pool.allocate(count) or ())
        return len(self._aside)

    def give_back(self) -> int:
        """Let go of what was set aside; how many blocks that was."""
        aside, self._aside = self._aside, ()
        if self._pool is not None and aside:
            self._pool.release(aside, 0)
        return len(aside)

    def take_moves(self, step: int) -> tuple[tuple[BlockCopy, ...], tuple[BlockCopy, ...]]:
        """Copies out and copies back for plan `step`, which will carry them out."""
        moves = tuple(self._outs.values()), tuple(self._ins)
        self._written.update(dict.fromkeys(self._outs, step))
        self._outs.clear()
        self._ins.clear()
        return moves

    def acknowledge(self, step: int) -> None:
        """Every rank has finished `step`."""
        if self._pool is not None:
            self._pool.acknowledge(step)

    def counts(self) -> BlockCounts:
        """Host blocks by state."""
        return self._pool.counts() if self._pool is not None else BlockCounts(0, 0, 0, 0, 0)

    def check(self, requests: Iterable[Request]) -> None:
        """Prove that each host block that is held is one request's.

        Raises:
            AssertionError: naming the block or the request.
        """
        if self._pool is None:
            return
        self._pool.check()
        held = self._pool.held()
        for host_id in self._aside:
            if held.pop(host_id, 0) != 1:
                raise AssertionError(f"host block {host_id} was set aside and is not held once")
        for key, host_ids in self._parcels.items():
            for host_id in host_ids:
                if held.pop(host_id, 0) != 1:
                    raise AssertionError(f"host block {host_id} is not parcel {key.hex()}'s alone")
        for request in requests:
            for host_id in request.host_ids:
                if held.pop(host_id, 0) != 1:
                    raise AssertionError(
                        f"request {request.request_id!r} names host block {host_id}, which is not "
                        "its own"
                    )
        if held:
            raise AssertionError(f"host blocks {sorted(held)} are held for nobody")

    def _let_go(self, host_id: int) -> None:
        """Release a block that is not brought back; a copy that is still pending is called off."""
        pending = self._outs.pop(host_id, None)
        self._release(host_id, 0 if pending is not None else self._written[host_id])

    def _release(self, host_id: int, fence_step: int) -> None:
        if self._pool is not None:
            self._written.pop(host_id, None)
            self._pool.release((host_id,), fence_step)
