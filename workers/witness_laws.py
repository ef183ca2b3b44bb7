"""Holds plans against the laws of blocks: fences, exclusive writes, and the right content.

Books kept from plans alone, beside the witness's own bytes. Those show a wrong block only by a
wrong answer; these name it, and know that equal tokens are not enough: an adapter, a salt, a reset
of the prefix cache, a step that is not committed yet. Knows members (one choice of a request) by
name. Units: blocks, tokens, steps.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

from blockyard.scheduler.plan import StepPlan

__all__ = ["BlockLaws", "LawBroken"]


class LawBroken(AssertionError):
    """A plan breaks a law of blocks; the message names the block."""


class BlockLaws:
    """Tables, fences and contents, as plans and commits leave them.

    Args:
        block_size: tokens in a block.
        known: all tokens of a member so far, prompt first.
        kind: who may share a member's blocks: those of an equal kind; None means nobody.
    """

    def __init__(
        self,
        block_size: int,
        known: Callable[[Hashable], Sequence[int]],
        kind: Callable[[Hashable], Hashable],
    ) -> None:
        self._size = block_size
        self._known = known
        self._kind = kind
        self.names: dict[int, Hashable] = {}
        """Members by the handle that they have now."""
        self._tables: dict[int, list[int]] = {}
        self._left: dict[Hashable, list[int]] = {}
        self._merging: set[int] = set()
        self._touched: dict[int, int] = {}
        self._touched_host: dict[int, int] = {}
        self._contents: dict[int, tuple[Hashable, tuple[int, ...]]] = {}

    def follow(
        self, plan: StepPlan, admitted: Sequence[Hashable], acknowledged: int
    ) -> list[Hashable]:
        """Take in a plan before it runs.

        Args:
            plan: it follows on those before.
            admitted: the members that it admits, in its order.
            acknowledged: newest step that every rank has finished.

        Returns:
            Members that have lost their place.

        Raises:
            LawBroken: naming the block.
        """
        losers = [self._forget(handle) for handle in plan.forgotten]
        for admission, name in zip(plan.admitted, admitted, strict=True):
            self.names[admission.handle] = name
            self._tables[admission.handle] = []
        copied = {move.destination for move in plan.copies}
        for replacement in plan.replacements:
            if replacement.block_id in copied:
                self._write_to(replacement.block_id, acknowledged)
            else:
                end = (replacement.index + 1) * self._size
                self._read(replacement.handle, end, replacement.block_id)
            self._tables[replacement.handle][replacement.index] = replacement.block_id
        self._merging.clear()
        starts = dict(zip(plan.handles, plan.starts, strict=True))
        brought = {move.destination for move in plan.swap_ins} | copied
        for grant in plan.grants:
            table, start = self._tables[grant.handle], starts.get(grant.handle, 0)
            for block_id in grant.block_ids:
                if len(table) * self._size < start and block_id not in brought:
                    end = min(start, (len(table) + 1) * self._size)
                    self._read(grant.handle, end, block_id)
                else:
                    self._write_to(block_id, acknowledged)
                table.append(block_id)
        for move in plan.swap_outs:
            if self._touched_host.get(move.destination, 0) > acknowledged:
                raise LawBroken(f"the fence of host block {move.destination} was passed")
            self._touched_host[move.destination] = plan.step
        self._touched_host.update((move.source, plan.step) for move in plan.swap_ins)
        self._touched.update((move.source, plan.step) for move in plan.copies)
        for handle in plan.handles:
            self._touched.update(dict.fromkeys(self._tables[handle], plan.step))
        return losers

    def fork(self, parent: int, handle: int, name: Hashable) -> None:
        """A member begins with its parent's table, at the end of the plan just followed."""
        self.names[handle] = name
        self._tables[handle] = list(self._tables[parent])

    def rename(self, handle: int, name: Hashable) -> None:
        """A handle, if it is still known, is a member's whose name was not known before."""
        if handle in self.names:
            self.names[handle] = name

    def branch(self, parent: Hashable, name: Hashable) -> None:
        """A member begins between two steps; it may keep blocks that its running parent has."""
        tables = (self._tables[h] for h, other in self.names.items() if other == parent)
        self._left[name] = list(next(tables, self._left.get(parent, ())))

    def commit(self, plan: StepPlan, right: Mapping[int, Sequence[int]] | None = None) -> None:
        """The plan is committed: what it has written may be found. Before its tokens are known.

        The next plan may have been followed already, and who has ended by then leaves nothing.

        Args:
            plan: the step.
            right: guesses that were right, by handle.
        """
        for handle, start, count in zip(plan.handles, plan.starts, plan.counts, strict=True):
            name = self.names.get(handle)
            if name is None:
                continue
            tokens = (*self._known(name), *(right or {}).get(handle, ()))[: start + count]
            written_blocks = -(-(start + count) // self._size)
            for index, block_id in enumerate(self._tables[handle][:written_blocks]):
                written = tuple(tokens[: (index + 1) * self._size])
                self._contents[block_id] = (self._kind(name), written)

    def hide(self) -> None:
        """The prefix cache was reset: nobody may find what is written so far.

        Whoever was to take another's equal block by the next plan gets it all the same.
        """
        self._contents = {block: (None, tokens) for block, (_, tokens) in self._contents.items()}
        self._merging = set(self._tables)

    def _forget(self, handle: int) -> Hashable:
        name = self.names.pop(handle)
        self._left[name] = self._tables.pop(handle)
        return name

    def _write_to(self, block_id: int, acknowledged: int) -> None:
        """A block is given out to be written."""
        if self._touched.get(block_id, 0) > acknowledged:
            raise LawBroken(f"the fence of block {block_id} was passed")
        if any(block_id in table for table in self._tables.values()):
            raise LawBroken(f"block {block_id} is given out twice")
        self._contents.pop(block_id, None)

    def _read(self, handle: int, end: int, block_id: int) -> None:
        """A member is given a block whose content counts, for its first `end` tokens.

        It may keep what is its own while it is parked, whoever else may not find it.
        """
        name = self.names[handle]
        own: Collection[int] = self._left.get(name, ())
        kind, written = self._contents.get(block_id, (None, ()))
        if written != tuple(self._known(name)[:end]):
            raise LawBroken(f"block {block_id} holds other tokens, or none that are committed")
        if block_id in own or handle in self._merging:
            return
        if kind is None or kind != self._kind(name):
            raise LawBroken(f"block {block_id} is not to be found by {name}")
