"""What the next plan must tell the workers beside its rows: handles, table entries, copies.

Workers know a request by the handle of its admission, and a choice that forks by one given to it
before it has begun. Until the step that forks it is committed it is *awaited*: workers may have its
table by then, so what changes in its parent's must be told of both, and if the parent ends, both
are forgotten. Knows handles and blocks; no requests. Units: blocks.
"""

from blockyard.scheduler.plan import BlockCopy, Replacement

__all__ = ["Notices"]


class Notices:
    """Gathers notices between two plans."""

    def __init__(self) -> None:
        self._forgotten: list[int] = []
        self._replacements: list[Replacement] = []
        self._copies: list[BlockCopy] = []
        self._awaited: dict[int, dict[int, int]] = {}  # by parent and choice
        self._next_handle = 0

    def new_handle(self) -> int:
        """A name towards the workers that was never used before."""
        self._next_handle += 1
        return self._next_handle

    def forget(self, handle: int) -> None:
        """Nobody has this handle any more, nor those that it was to begin.

        What else was to be told of them is not.
        """
        gone = (handle, *self._awaited.pop(handle, {}).values())
        self._forgotten += gone
        if self._replacements:
            self._replacements = [r for r in self._replacements if r.handle not in gone]

    def replace(self, handle: int, index: int, block_id: int) -> None:
        """A table entry is another block now; also for choices that begin with that table."""
        for known in (handle, *self._awaited.get(handle, {}).values()):
            self._replacements.append(Replacement(known, index, block_id))

    def copy(self, copy: BlockCopy) -> None:
        """The next plan must copy a block on the device."""
        self._copies.append(copy)

    def await_fork(self, parent: int, choice: int, child: int) -> None:
        """The plan being made lets `parent` begin another choice, under the handle `child`."""
        self._awaited.setdefault(parent, {})[choice] = child

    def are_awaited(self, parent: int) -> bool:
        """Whether choices that begin with this handle's table are under way."""
        return bool(self._awaited.get(parent))

    def begun(self, parent: int, choice: int) -> None:
        """A choice that was awaited has begun."""
        del self._awaited[parent][choice]

    def call_off(self, parent: int, choice: int) -> None:
        """A choice is not wanted any more; if it is awaited, its handle is nobody's."""
        child = self._awaited.get(parent, {}).pop(choice, None)
        if child is not None:
            self.forget(child)

    def end_awaiting(self, parent: int) -> None:
        """The step that forks from `parent` is committed: all have begun, or were called off."""
        self._awaited.pop(parent, None)

    def take(self) -> tuple[tuple[int, ...], tuple[Replacement, ...], tuple[BlockCopy, ...]]:
        """All that was gathered since the last call: forgotten handles, replacements, copies."""
        taken = tuple(self._forgotten), tuple(self._replacements), tuple(self._copies)
        for gathered in (self._forgotten, self._replacements, self._copies):
            gathered.clear()
        return taken
