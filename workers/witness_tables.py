"""What the witness remembers of each handle, and every plan that it refuses.

Follows block tables through admissions, grants, replacements and forks, counts how many tables
hold each block, and refuses what no sound scheduler plans: above all a write to a block that two
tables share. Does not know what is in a block. Units: tokens, blocks; positions count from 0.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from blockyard.scheduler.plan import (
    PLACEHOLDER,
    BlockCopy,
    BlockGrant,
    Fork,
    Replacement,
    StepPlan,
)

__all__ = ["PlanRefused", "WitnessRow", "WitnessTables"]


class PlanRefused(RuntimeError):
    """A plan breaks the protocol between scheduler and worker; the rank cannot go on."""


@dataclass(slots=True)
class WitnessRow:
    """What a worker remembers of one handle. `written` is None until its first step.

    `prompt` is there when the prompt is scored; `searches` when its tokens are searched for.
    """

    choice: int
    num_tops: int | None = None
    prompt: tuple[int, ...] = ()
    searches: bool = False
    block_ids: list[int] = field(default_factory=list)
    written: int | None = None
    sampled: int | None = None
    """The token sampled last, which belongs at position `sampled_at`."""
    sampled_at: int = 0
    adapter: str = ""
    """Id of the adapter that its tokens are computed with, if any."""


class WitnessTables:
    """The block tables of all handles, after the plans taken in so far."""

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._num_host_blocks = num_host_blocks
        self._block_size = block_size
        self._rows: dict[int, WitnessRow] = {}
        self._holders: Counter[int] = Counter()
        self._newest_handle = -1
        self._step = 0

    def accept(self, plan: StepPlan) -> None:
        """Forget, admit, replace, grant; prove that the plan's block moves can be made.

        Raises:
            PlanRefused: the plan does not follow from those before; it names handle or block.
            AssertionError: the plan's columns contradict one another.
        """
        plan.check()
        if plan.step != self._step + 1:
            raise PlanRefused(f"step {plan.step} came after step {self._step}")
        self._step = plan.step
        for handle in plan.forgotten:
            self._forget(handle)
        filled = self._filled_blocks() if plan.copies or plan.swap_ins else set()
        for admission in plan.admitted:
            self._check_new(admission.handle, "admits")
            sampling = admission.sampling
            scored = admission.prompt_tokens if sampling.prompt_logprobs is not None else 0
            self._rows[admission.handle] = WitnessRow(
                sampling.choice,
                sampling.num_tops,
                admission.token_ids[:scored],
                sampling.searches,
                adapter=admission.adapter,
            )
        for replacement in plan.replacements:
            self._replace(replacement)
        # What has left its last table may be filled anew at once, for one that takes it here.
        placed = Counter(replacement.block_id for replacement in plan.replacements)
        filled = {block_id for block_id in filled if self._holders[block_id] > placed[block_id]}
        for grant in plan.grants:
            self._grant(grant)
        self._check_moves(plan, filled)
        # That each fork's parent is in this step and samples, the plan's own check has proved.
        for fork in plan.forks:
            self._check_new(fork.handle, "forks into")
        # Only now: within one plan, new handles may come in any order.
        admitted = [admission.handle for admission in plan.admitted]
        forked = [fork.handle for fork in plan.forks]
        if len(set(forked)) < len(forked):
            raise PlanRefused(f"step {self._step} forks twice into one of the handles {forked}")
        self._newest_handle = max((self._newest_handle, *admitted, *forked))

    def row(self, handle: int) -> WitnessRow:
        """What is remembered of a handle.

        Raises:
            PlanRefused: it is unknown.
        """
        row = self._rows.get(handle)
        if row is None:
            raise PlanRefused(f"step {self._step} names handle {handle}, which is unknown")
        return row

    def advance(self, handle: int, start: int, count: int) -> Sequence[int]:
        """Book `count` tokens written from position `start`; returns the handle's block table.

        A handle in its first step may start anywhere: what lies before was written by others.

        Raises:
            PlanRefused: tokens are skipped, written twice or past the table, or a block to write
                to is shared with another table.
        """
        row = self.row(handle)
        end = start + count
        if start < 0 or (row.written is not None and start != row.written):
            raise PlanRefused(
                f"step {self._step} starts handle {handle} at {start}, it has {row.written} tokens"
            )
        if end > len(row.block_ids) * self._block_size:
            raise PlanRefused(
                f"step {self._step} takes handle {handle} to {end} tokens, "
                f"its blocks hold {len(row.block_ids) * self._block_size}"
            )
        first, last = start // self._block_size, (end - 1) // self._block_size
        for block_id in row.block_ids[first : last + 1]:
            if self._holders[block_id] > 1:
                raise PlanRefused(
                    f"step {self._step} has handle {handle} write to block {block_id}, "
                    f"which {self._holders[block_id]} tables share"
                )
        row.written = end
        return row.block_ids

    def fill(self, handle: int, start: int, token_ids: Sequence[int]) -> Sequence[int]:
        """A row's tokens, with what was sampled for the handle in place of a placeholder.

        Raises:
            PlanRefused: nothing was sampled for that position.
        """
        if PLACEHOLDER not in token_ids:
            return token_ids
        row = self.row(handle)
        if row.sampled is None or row.sampled_at != start:
            raise PlanRefused(
                f"step {self._step} awaits the token at {start} of handle {handle}, "
                f"the one sampled last is at {row.sampled_at}"
            )
        return (row.sampled,)

    def fork(self, fork: Fork) -> WitnessRow:
        """Give the child its parent's table and what the parent has written."""
        parent = self.row(fork.parent)
        child = WitnessRow(
            fork.sampling.choice,
            fork.sampling.num_tops,
            block_ids=list(parent.block_ids),
            written=parent.written,
            adapter=parent.adapter,
        )
        self._rows[fork.handle] = child
        self._holders.update(child.block_ids)
        return child

    def _forget(self, handle: int) -> None:
        row = self._rows.pop(handle, None)
        if row is None:
            raise PlanRefused(f"step {self._step} forgets handle {handle}, which is unknown")
        self._holders.subtract(row.block_ids)

    def _check_new(self, handle: int, verb: str) -> None:
        if handle <= self._newest_handle or handle in self._rows:
            raise PlanRefused(f"step {self._step} {verb} handle {handle} again")

    def _grant(self, grant: BlockGrant) -> None:
        row = self.row(grant.handle)
        for block_id in grant.block_ids:
            self._check_device_block(block_id, "grants")
            if block_id in row.block_ids:
                raise PlanRefused(
                    f"step {self._step} grants block {block_id} to handle {grant.handle} twice"
                )
            row.block_ids.append(block_id)
            self._holders[block_id] += 1

    def _replace(self, replacement: Replacement) -> None:
        row = self.row(replacement.handle)
        if not 0 <= replacement.index < len(row.block_ids):
            raise PlanRefused(
                f"step {self._step} replaces entry {replacement.index} of handle "
                f"{replacement.handle}, whose table has {len(row.block_ids)}"
            )
        self._check_device_block(replacement.block_id, "places")
        if replacement.block_id in row.block_ids:
            raise PlanRefused(
                f"step {self._step} places block {replacement.block_id} in the table of handle "
                f"{replacement.handle} twice"
            )
        self._holders[row.block_ids[replacement.index]] -= 1
        self._holders[replacement.block_id] += 1
        row.block_ids[replacement.index] = replacement.block_id

    def _check_moves(self, plan: StepPlan, filled: set[int]) -> None:
        for move in (*plan.swap_outs, *plan.copies):
            self._check_device_block(move.source, "moves")
        for move in plan.swap_ins:
            self._check_host_block(move.source)
        for move in plan.swap_outs:
            self._check_host_block(move.destination)
        self._check_destinations("host block", plan.swap_outs)
        brought = (*plan.copies, *plan.swap_ins)
        for move in brought:
            self._check_device_block(move.destination, "moves")
            if move.destination in filled:
                raise PlanRefused(
                    f"step {self._step} moves a block over block {move.destination}, "
                    "which a table holds filled"
                )
        self._check_destinations("block", brought)
        chained = {move.source for move in plan.copies} & {move.destination for move in plan.copies}
        if chained:
            raise PlanRefused(
                f"step {self._step} copies block {min(chained)} and copies another over it"
            )

    def _check_destinations(self, kind: str, moves: Iterable[BlockCopy]) -> None:
        for block_id, times in Counter(move.destination for move in moves).items():
            if times > 1:
                raise PlanRefused(f"step {self._step} fills {kind} {block_id} {times} times")

    def _check_device_block(self, block_id: int, verb: str) -> None:
        if not 0 <= block_id < self._num_blocks:
            raise PlanRefused(
                f"step {self._step} {verb} block {block_id}, the pool has {self._num_blocks}"
            )

    def _check_host_block(self, block_id: int) -> None:
        if not 0 <= block_id < self._num_host_blocks:
            raise PlanRefused(
                f"step {self._step} moves host block {block_id}, "
                f"the host pool has {self._num_host_blocks}"
            )

    def _filled_blocks(self) -> set[int]:
        """Blocks with something written in them, of every handle that has computed."""
        return {
            block_id
            for row in self._rows.values()
            for block_id in row.block_ids[: -(-(row.written or 0) // self._block_size)]
        }
