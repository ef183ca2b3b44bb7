"""Full blocks whose KV is written, found by content.

An entry is a hit only under the entry matched just before it and with equal token ids: a key
merely says where to look. Knows keys, tokens and block ids; whether a block is held, and when it
is given to somebody else, is the pool's business. Units: blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from blockyard.scheduler.block_keys import KeyChain

__all__ = ["GONE", "PrefixEntry", "PrefixEvents", "PrefixIndex", "StoredBlock"]

_FIRST_LOOK = 16
_NEXT_LOOK = 4
"""Blocks that are looked for at once; when all are there it is so many times as many."""

GONE = -1
"""Block id of an entry that has left the index; it never comes back."""


@dataclass(slots=True, eq=False)
class PrefixEntry:
    """One full block's content and where it is."""

    key: bytes
    parent: "PrefixEntry | None"
    root: bytes
    tokens: bytes
    block_id: int
    num_children: int = 0

    @property
    def parent_key(self) -> bytes:
        """Key of the parent block, or of the root."""
        return self.root if self.parent is None else self.parent.key


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A key that can be hit, and the key it follows."""

    key: bytes
    parent_key: bytes


@dataclass(frozen=True, slots=True)
class PrefixEvents:
    """How the index differs from the last time this was asked: take away first, then add."""

    removed: tuple[bytes, ...]
    stored: tuple[StoredBlock, ...]


class PrefixIndex:
    """Entries by key and by block.

    Leaves go before their parents: nothing that can still be hit ever hangs in the air.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, PrefixEntry] = {}
        self._by_block: dict[int, PrefixEntry] = {}
        self._stored: dict[bytes, bytes] = {}
        self._removed: dict[bytes, None] = {}

    def __len__(self) -> int:
        """Blocks that can be hit."""
        return len(self._entries)

    def knows(self, key: bytes) -> bool:
        """Whether some block has this key."""
        return key in self._entries

    def extend(self, path: list[PrefixEntry], chain: KeyChain, num_blocks: int) -> None:
        """Lengthen `path`, the entries matched so far, up to `num_blocks` or the first miss.

        `path` may come from an earlier time: entries that have left the index since are dropped
        from its end first.
        """
        while path and path[-1].block_id == GONE:
            path.pop()
        look = _FIRST_LOOK
        while (begin := len(path)) < num_blocks:
            end = min(begin + look, num_blocks)
            path += self._run(path[-1] if path else None, chain, begin, end)
            if len(path) < end:
                return
            look *= _NEXT_LOOK

    def _run(
        self, parent: PrefixEntry | None, chain: KeyChain, begin: int, end: int
    ) -> list[PrefixEntry]:
        """Entries of a chain's blocks from `begin` up to `end`, or the first miss."""
        found = list(map(self._entries.get, chain.keys[begin:end]))
        if not all(found):
            del found[found.index(None) :]
        run = cast(list[PrefixEntry], found)
        if parent is None and run and run[0].root != chain.root:
            return []
        if [entry.parent for entry in run] == [parent, *run[:-1]] and b"".join(
            [entry.tokens for entry in run]
        ) == chain.packed(begin, begin + len(run)):
            return run
        # Somebody has the key of other content: it is looked for block by block.
        for index, entry in enumerate(run):
            if entry.parent is not parent or entry.tokens != chain.block(begin + index):
                return run[:index]
            parent = entry
        return run

    def store(
        self, parent: PrefixEntry | None, chain: KeyChain, index: int, block_id: int
    ) -> PrefixEntry | None:
        """The entry of block `index` of a chain, after its parent; made for `block_id` on a miss.

        None when other content has the key: somebody's hint is wrong.
        """
        key, tokens, root = chain.keys[index], chain.block(index), chain.root
        entry = self._entries.get(key)
        if entry is not None:
            same = entry.parent is parent and entry.tokens == tokens and entry.root == root
            return entry if same else None
        return self._enter(PrefixEntry(key, parent, root, tokens, block_id))

    def store_run(
        self, parent: PrefixEntry | None, chain: KeyChain, begin: int, block_ids: Sequence[int]
    ) -> list[PrefixEntry]:
        """Entries made for blocks from `begin` of a chain on, up to the first key that is known."""
        known, root, run = self._entries, chain.root, []
        end = begin + len(block_ids)
        for key, tokens, block_id in zip(
            chain.keys[begin:end], chain.blocks(begin, end), block_ids, strict=True
        ):
            if key in known:
                break
            parent = self._enter(PrefixEntry(key, parent, root, tokens, block_id))
            run.append(parent)
        return run

    def remove(self, block_id: int) -> None:
        """The block is given to somebody else.

        Raises:
            ValueError: other entries follow it, so it is not its turn yet.
        """
        entry = self._by_block[block_id]
        if entry.num_children:
            raise ValueError(f"block {block_id} leaves the index before {entry.num_children} more")
        if entry.parent is not None:
            entry.parent.num_children -= 1
        self._forget(entry)

    def clear(self) -> None:
        """Drop every entry."""
        for entry in self.entries():
            self._forget(entry)

    def take_events(self) -> PrefixEvents:
        """What changed since the last call; never more than twice the blocks of the pool."""
        events = PrefixEvents(
            removed=tuple(self._removed),
            stored=tuple(StoredBlock(key, parent) for key, parent in self._stored.items()),
        )
        self._removed.clear()
        self._stored.clear()
        return events

    def snapshot(self) -> tuple[StoredBlock, ...]:
        """All that can be hit, parents before their children. Walks the index."""
        return tuple(StoredBlock(entry.key, entry.parent_key) for entry in self._entries.values())

    def entries(self) -> tuple[PrefixEntry, ...]:
        """All entries. Walks the index: for checks only."""
        return tuple(self._entries.values())

    def check(self) -> None:
        """Prove that keys and blocks name the same entries and parents are there.

        Raises:
            AssertionError: naming the block.
        """
        if len(self._by_block) != len(self._entries):
            raise AssertionError(
                f"{len(self._entries)} keys are indexed, for {len(self._by_block)} blocks"
            )
        children: dict[int, int] = {}
        for key, entry in self._entries.items():
            if entry.key != key or self._by_block.get(entry.block_id) is not entry:
                raise AssertionError(f"block {entry.block_id} is indexed under a wrong key")
            if entry.parent is not None:
                if self._entries.get(entry.parent.key) is not entry.parent:
                    raise AssertionError(f"block {entry.block_id} is indexed without its parent")
                children[id(entry.parent)] = children.get(id(entry.parent), 0) + 1
        for entry in self._entries.values():
            if entry.num_children != children.get(id(entry), 0):
                raise AssertionError(
                    f"block {entry.block_id} has {children.get(id(entry), 0)} children, "
                    f"{entry.num_children} are counted"
                )

    def _enter(self, entry: PrefixEntry) -> PrefixEntry:
        key, parent = entry.key, entry.parent
        if parent is not None:
            parent.num_children += 1
        self._entries[key] = self._by_block[entry.block_id] = entry
        if key in self._removed:
            del self._removed[key]
        else:
            self._stored[key] = entry.root if parent is None else parent.key
        return entry

    def _forget(self, entry: PrefixEntry) -> None:
        del self._entries[entry.key]
        del self._by_block[entry.block_id]
        entry.block_id = GONE
        if entry.key in self._stored:
            del self._stored[entry.key]
        else:
            self._removed[entry.key] = None
