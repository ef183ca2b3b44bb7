"""What becomes of the blocks of a request that has lost its place: saved, dropped or still held.

By the policy, and in `auto` by what each way costs at the rates measured so far. A parked request
that still holds blocks gives up more of them, the last first, whenever somebody needs them; all
who run are more urgent than all who are parked, so nobody ever waits for a parked one's blocks.
Knows nothing of who was chosen and why. Units: blocks, tokens, seconds.
"""

import math
from bisect import insort
from collections.abc import Iterable, Sequence

from blockyard.scheduler.config import PreemptionPolicy
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.holdings import Holdings
from blockyard.scheduler.host_blocks import HostBlocks
from blockyard.scheduler.ledger import PreemptionCounts
from blockyard.scheduler.request import Request
from blockyard.scheduler.way_out import Way

__all__ = ["Parking"]


class Parking:
    """Blocks of those who lost their place, on both sides of the link."""

    def __init__(
        self, policy: PreemptionPolicy, holdings: Holdings, host: HostBlocks, rates: RateMeter
    ) -> None:
        self.host = host
        self.rates = rates
        self._policy = policy
        self._holdings = holdings
        self._holders: list[Request] = []
        self._movers: list[Request] = []
        self._swapped = self._recomputed = self._held = self._moved = self._ordered = 0
        self._swap_estimate = self._recompute_estimate = 0.0
        self._swap_seconds = self._recompute_seconds = 0.0

    @property
    def holders(self) -> Sequence[Request]:
        """Parked requests that hold device blocks, the most urgent first."""
        return self._holders

    def park(self, request: Request, needed: int) -> None:
        """Take blocks from a request that has just lost its place.

        `needed` is how many of them are wanted now: all that `auto` takes.
        """
        request.num_lost = max(request.num_lost, request.num_computed)
        request.num_saved = request.num_computed
        exclusive = self._holdings.num_exclusive(request)
        self._ordered += request.way_out is not None
        if _way(request) is Way.MOVE:
            self._moved += 1
            self._movers.append(request)
            self.add_holder(request)
            return
        if self._policy is PreemptionPolicy.RECOMPUTE or request.held:
            # Who is held comes back nobody knows when: others must not wait for its blocks.
            self._drop(request, 0)
            saved = False
        elif self._policy is PreemptionPolicy.SWAP:
            saved = self._save(request, exclusive)
            if not saved:
                self._drop(request, 0)
        else:
            needed = min(needed, exclusive)
            if not needed:
                self._held += 1
                self.add_holder(request)
                return
            saved = self._give_up(request, needed)
        self._swapped += saved
        self._recomputed += not saved
        self.add_holder(request)

    def take_movers(self) -> list[Request]:
        """Requests parked since the last call that were to go to another group."""
        movers, self._movers = self._movers, []
        return movers

    def take_back(self, short: int, needy: Request) -> bool:
        """Take up to `short` blocks from the least urgent holder, for somebody more urgent.

        What it shares with others it lets go when the rest is not enough: so one that nobody else
        needs becomes free after all.

        Returns:
            Whether there was such a holder; then it holds less than before.
        """
        if not self._holders or self._holders[-1].urgency <= needy.urgency:
            return False
        holder = self._holders[-1]
        count = min(short, self._holdings.num_exclusive(holder))
        if count:
            self._give_up(holder, count)
        if count < short:
            self._drop(holder, 0, keep_host=holder.chain is not None)
        if not holder.table.block_ids:
            self._holders.pop()
        return True

    def num_reclaimable(self, needy: Request) -> int:
        """Blocks that come free when all holders less urgent than `needy` give up theirs."""
        return self._holdings.num_held_by([h for h in self._holders if needy < h])

    def add_holder(self, request: Request) -> None:
        """A request without a place may hold blocks from now on."""
        if request.table.block_ids:
            insort(self._holders, request)

    def remove_holder(self, request: Request) -> None:
        """A request gets its place back, or ends."""
        if request in self._holders:
            self._holders.remove(request)

    def note_copies(self, num_blocks: int, seconds: float) -> None:
        """A step has moved blocks over the link."""
        self.rates.observe_copy(num_blocks, seconds)
        if num_blocks:
            self._swap_seconds += seconds

    def note_step(self, prefill: int, decodes: int, recomputed: int, seconds: float) -> None:
        """A step has computed tokens; `recomputed` of the prefilled ones were computed before.

        They are charged with their share of the step.
        """
        self.rates.observe_step(prefill, decodes, seconds)
        if recomputed:
            self._recompute_seconds += seconds * recomputed / (prefill + decodes)

    def counts(self) -> PreemptionCounts:
        """What preemptions were, and what they cost."""
        return PreemptionCounts(
            swapped=self._swapped,
            recomputed=self._recomputed,
            held=self._held,
            blocks_out=self.host.num_saved,
            blocks_in=self.host.num_restored,
            swap_estimated_seconds=self._swap_estimate,
            swap_seconds=self._swap_seconds,
            recompute_estimated_seconds=self._recompute_estimate,
            recompute_seconds=self._recompute_seconds,
            moved=self._moved,
            ordered=self._ordered,
        )

    def check(self, running: Sequence[Request], live: Iterable[Request]) -> None:
        """Prove that host blocks add up and that no runner could ever wait for a holder.

        Raises:
            AssertionError: naming the request or the block.
        """
        self.host.check(live)
        for holder in self._holders:
            if not holder.table.block_ids:
                raise AssertionError(f"request {holder.request_id!r} is a holder of nothing")
            # Choices of one request are of one age: one may branch while another is parked.
            if running and holder.urgency[:2] < running[-1].urgency[:2]:
                raise AssertionError(
                    f"request {holder.request_id!r} is parked with blocks, the less urgent "
                    f"{running[-1].request_id!r} runs"
                )

    def _give_up(self, request: Request, count: int) -> bool:
        """Take a table's last `count` blocks the cheaper way; whether they were saved."""
        keep = len(request.table.block_ids) - count
        model = self.rates.model()
        swap = model.swap_seconds(count, self.host.num_pending_outs)
        recompute = model.recompute_seconds(request.num_saved - keep * request.table.block_size)
        way = _way(request)
        cheaper = swap < recompute if way is None else way is Way.SWAP
        if (cheaper or self._policy is PreemptionPolicy.SWAP) and self._save(request, count):
            return True
        self._drop(request, keep)
        return False

    def _save(self, request: Request, count: int) -> bool:
        """Copy a table's last `count` blocks to the host, if there is room."""
        keep = len(request.table.block_ids) - count
        model = self.rates.model()
        estimate = model.swap_seconds(count, self.host.num_pending_outs)
        if not self._continues(request) or not self.host.save(
            request, keep, request.table.block_ids[keep:]
        ):
            return False
        self._swap_estimate += estimate if estimate < math.inf else 0.0
        self._holdings.shrink(request, keep)
        kept = (keep + len(request.host_ids)) * request.table.block_size
        if kept < request.num_saved:
            self._note_lost(request.num_saved - kept)
            request.num_saved = kept
        return True

    def _drop(self, request: Request, keep: int, keep_host: bool = False) -> None:
        """Let a table's blocks from `keep` on go, and what was saved after them."""
        self._holdings.shrink(request, keep)
        if not keep_host:
            self.host.drop(request)
            self._note_lost(request.num_saved - request.num_computed)
            request.num_saved = request.num_computed

    def _note_lost(self, num_tokens: int) -> None:
        estimate = self.rates.model().recompute_seconds(num_tokens)
        self._recompute_estimate += estimate if estimate < math.inf else 0.0

    def _continues(self, request: Request) -> bool:
        """Whether blocks saved earlier follow the table's last one without a gap."""
        return not request.host_ids or request.host_start == len(request.table.block_ids)


def _way(request: Request) -> Way | None:
    """What was decided for a victim elsewhere; None: whatever is cheaper."""
    return None if request.way_out is None else request.way_out[1].way
