"""Free memory as holes in address order: first fit, largest hole, and merging of neighbours.

A treap over the holes' start addresses in which each node knows the largest hole below it, so that
taking and giving back cost O(log holes) expected. Knows nothing of requests. Units: slots (or
bytes; whatever the caller counts in).
"""

from collections.abc import Iterator
from typing import Self

__all__ = ["HoleMap"]

_MASK = (1 << 64) - 1


class _Hole:
    """One hole, and a node of the treap: starts ascend from left to right, priorities downward."""

    __slots__ = ("largest", "left", "priority", "right", "size", "start")

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.size = size
        self.largest = size
        self.left: Self | None = None
        self.right: Self | None = None
        # A mixed address in place of a random number: the same calls build the same tree.
        mixed = ((start + 1) * 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        self.priority = mixed ^ (mixed >> 31)

    def update(self) -> None:
        """Restate `largest` after the children or the size changed."""
        largest = self.size
        if self.left is not None and self.left.largest > largest:
            largest = self.left.largest
        if self.right is not None and self.right.largest > largest:
            largest = self.right.largest
        self.largest = largest


class HoleMap:
    """The free parts of `capacity` slots; all free at first. No two holes touch."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1")
        self.capacity = capacity
        self.total_free = capacity
        self._root: _Hole | None = _Hole(0, capacity)
        self._size_at = {0: capacity}
        self._start_by_end = {capacity: 0}

    @property
    def largest(self) -> int:
        """Size of the largest hole; 0 when nothing is free."""
        return self._root.largest if self._root is not None else 0

    def __len__(self) -> int:
        """Number of holes."""
        return len(self._size_at)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Every hole as (start, size), by address."""
        stack: list[_Hole] = []
        node = self._root
        while stack or node is not None:
            while node is not None:
                stack.append(node)
                node = node.left
            node = stack.pop()
            yield node.start, node.size
            node = node.right

    def take(self, size: int) -> int | None:
        """Take `size` slots from the front of the lowest hole that has them; None if none has."""
        if size < 1:
            raise ValueError(f"cannot take {size} slots; take at least 1")
        node = self._root
        if node is None or node.largest < size:
            return None
        path = []
        while True:
            path.append(node)
            if node.left is not None and node.left.largest >= size:
                node = node.left
            elif node.size >= size:
                break
            else:
                assert node.right is not None  # the maxima said that a fit lies below
                node = node.right
        start, rest = node.start, node.size - size
        self.total_free -= size
        if rest:
            # What is left of the hole keeps its place among the others.
            self._resize(path, start + size, rest)
        else:
            self._remove(start)
        return start

    def give(self, start: int, size: int) -> None:
        """Take back slots that were handed out; a hole before or behind becomes one with them.

        The caller hands back only what it took: overlap is found by `check`, not here.
        """
        self.total_free += size
        end = start + size
        behind = self._size_at.get(end)
        before = self._start_by_end.get(start)
        if before is not None:
            if behind is not None:
                self._remove(end)
            whole = end + (behind or 0) - before
            self._resize(self._path_to(before), before, whole)
        elif behind is not None:
            self._resize(self._path_to(end), start, size + behind)
        else:
            self._insert(start, size)

    def check(self) -> None:
        """Prove: holes ascend, do not touch, lie inside, add up, and every maximum is true."""
        last_end = -1
        total = 0
        for start, size in self:
            if size < 1 or start <= last_end or start < 0:
                raise AssertionError(f"hole {start}+{size} is empty, or touches what ends before")
            if self._size_at.get(start) != size or self._start_by_end.get(start + size) != start:
                raise AssertionError(f"hole {start}+{size} is not in both address tables")
            last_end = start + size
            total += size
        if last_end > self.capacity:
            raise AssertionError(f"a hole ends at {last_end}, the memory at {self.capacity}")
        if total != self.total_free:
            raise AssertionError(f"holes add up to {total}, the books say {self.total_free}")
        if len(self._size_at) != len(self._start_by_end) or len(list(self)) != len(self):
            raise AssertionError("the address tables name holes that are not in the tree")
        if self.largest != max((size for _, size in self), default=0):
            raise AssertionError(f"the largest hole is not {self.largest}")
        _check_node(self._root)

    def _path_to(self, start: int) -> list[_Hole]:
        """The nodes from the root down to the hole at `start`, which must be there."""
        path = []
        node = self._root
        while node is not None:
            path.append(node)
            if node.start == start:
                break
            node = node.left if start < node.start else node.right
        return path

    def _resize(self, path: list[_Hole], start: int, size: int) -> None:
        """Let the last hole of a path lie elsewhere, but between the same neighbours."""
        hole = path[-1]
        del self._start_by_end[hole.start + self._size_at.pop(hole.start)]
        self._size_at[start] = size
        self._start_by_end[start + size] = start
        hole.start, hole.size = start, size
        for node in reversed(path):
            node.update()

    def _insert(self, start: int, size: int) -> None:
        self._size_at[start] = size
        self._start_by_end[start + size] = start
        lower, higher = _split(self._root, start)
        self._root = _merge(_merge(lower, _Hole(start, size)), higher)

    def _remove(self, start: int) -> None:
        del self._start_by_end[start + self._size_at.pop(start)]
        lower, rest = _split(self._root, start)
        _, higher = _split(rest, start + 1)
        self._root = _merge(lower, higher)


def _split(node: _Hole | None, start: int) -> tuple[_Hole | None, _Hole | None]:
    """Two trees: the holes below `start`, and the rest."""
    if node is None:
        return None, None
    if node.start < start:
        node.right, higher = _split(node.right, start)
        node.update()
        return node, higher
    lower, node.left = _split(node.left, start)
    node.update()
    return lower, node


def _merge(lower: _Hole | None, higher: _Hole | None) -> _Hole | None:
    """One tree of two, every hole of the first below every hole of the second."""
    if lower is None or higher is None:
        return lower if higher is None else higher
    if lower.priority > higher.priority:
        lower.right = _merge(lower.right, higher)
        lower.update()
        return lower
    higher.left = _merge(lower, higher.left)
    higher.update()
    return higher


def _check_node(node: _Hole | None) -> None:
    if node is None:
        return
    largest = node.size
    for child in (node.left, node.right):
        if child is not None:
            largest = max(largest, child.largest)
            if child.priority > node.priority:
                raise AssertionError(f"hole at {child.start} stands below a lower priority")
            _check_node(child)
    if largest != node.largest:
        raise AssertionError(f"the node at {node.start} says {node.largest}, below is {largest}")
