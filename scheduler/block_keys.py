"""Names of blocks by content: chained digests, the same in every process.

A key names everything up to the end of a full block: the block's token ids, its parent's key, and
at the root what else decides the KV (adapter, salt, weights). Knows neither blocks nor requests.
Units: token ids; a key is 16 bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from hashlib import blake2b
from struct import Struct, pack
from struct import error as StructError

__all__ = [
    "KEY_BYTES",
    "MAX_TOKEN_ID",
    "NO_EXTRAS",
    "KeyChain",
    "PrefixExtras",
    "PromptKeys",
    "block_keys",
    "pack_token_ids",
    "root_key",
]

KEY_BYTES = 16

MAX_TOKEN_ID = 2**32 - 1
"""Token ids are hashed and compared as 4 bytes, little-endian."""

_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class PrefixExtras:
    """What decides the KV of a prefix besides its tokens. Empty means: none.

    Attributes:
        adapter, adapter_version: the adapter in use.
        salt: keeps apart what must not be shared, such as tenants.
        weight_version: version of the base weights.
    """

    adapter: str = ""
    adapter_version: str = ""
    salt: str = ""
    weight_version: str = ""

    @property
    def adapter_id(self) -> str:
        """What workers call the adapter, `NAME@VERSION`; empty without one."""
        return f"{self.adapter}@{self.adapter_version}" if self.adapter else ""


NO_EXTRAS = PrefixExtras()
"""Tokens alone decide the KV."""


def root_key(extras: PrefixExtras) -> bytes:
    """The parent of every first block. Each value is tagged by its kind and its length."""
    return _PLAIN_ROOT if extras is NO_EXTRAS else _digest_of(extras)


def _digest_of(extras: PrefixExtras) -> bytes:
    digest = blake2b(digest_size=KEY_BYTES, person=b"blockyard.root")
    for field in fields(extras):
        value = getattr(extras, field.name).encode()
        if value:
            digest.update(
                pack(f"<B{len(field.name)}sQ", len(field.name), field.name.encode(), len(value))
            )
            digest.update(value)
    return digest.digest()


_PLAIN_ROOT = _digest_of(NO_EXTRAS)


def block_keys(
    token_ids: Sequence[int], block_size: int, extras: PrefixExtras
) -> tuple[bytes, ...]:
    """Keys of all full blocks of `token_ids`, for whoever wants them before a scheduler does."""
    chain = KeyChain(root_key(extras), block_size)
    chain.reach(token_ids, len(token_ids) // block_size)
    return tuple(chain.keys)


class PromptKeys:
    """Keys of one prompt's full blocks, made once for each size and weights that are asked for."""

    __slots__ = ("_extras", "_keys", "_token_ids")

    def __init__(self, token_ids: Sequence[int], extras: PrefixExtras) -> None:
        self._token_ids = token_ids
        self._extras = extras
        self._keys: dict[tuple[int, str], tuple[bytes, ...]] = {}

    def of(self, block_size: int, weight_version: str = "") -> tuple[bytes, ...]:
        """From the first block on, under this version of the weights."""
        keys = self._keys.get((block_size, weight_version))
        if keys is None:
            extras = self._extras
            if extras.weight_version != weight_version:
                extras = replace(extras, weight_version=weight_version)
            keys = block_keys(self._token_ids, block_size, extras)
            self._keys[block_size, weight_version] = keys
        return keys


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as they are hashed and compared. Of many it is the quickest way there is.

    Raises:
        OverflowError: one is below 0 or above `MAX_TOKEN_ID`.
    """
    try:
        return Struct(f"<{len(token_ids)}I").pack(*token_ids)
    except StructError as wrong:
        raise OverflowError(f"token ids are from 0 to {MAX_TOKEN_ID}: {wrong}") from None


@cache
def _block_format(block_size: int) -> Struct:
    """How a block's token ids are packed. Made once: it takes as long as the rest of a chain."""
    return Struct(f"<{block_size}I")


_EMPTY = blake2b(digest_size=KEY_BYTES)
"""The digest of nothing; copied, because to make one takes longer than to digest a block."""


class KeyChain:
    """Keys and packed token ids of a growing sequence's full blocks, made when first asked for.

    Args:
        root: key of the parent of the first block.
        block_size: token ids in a block.
        hints: keys that somebody computed already, from the first block on. They are believed, so
            whoever finds something under a key must compare the packed tokens too.
        packed: token ids from the first on, packed already; those after the last full block are
            left out.
    """

    __slots__ = (
        "_block_format",
        "_block_size",
        "_head",
        "_num_head",
        "_tail",
        "keys",
        "num_blocks",
        "root",
    )

    def __init__(
        self, root: bytes, block_size: int, hints: Sequence[bytes] = (), packed: bytes = b""
    ) -> None:
        self.root = root
        self.keys: list[bytes] = list(hints)
        self.num_blocks = len(packed) // (block_size * _TOKEN_BYTES)
        """Full blocks whose token ids are packed."""
        self._block_size = block_size
        self._block_format = _block_format(block_size)
        # What was packed at first, in one piece, and each block after it.
        self._num_head = self.num_blocks
        self._head = packed[: self.num_blocks * block_size * _TOKEN_BYTES]
        self._tail: list[bytes] = []

    def copy(self, num_blocks: int | None = None) -> "KeyChain":
        """A chain that may grow on in another way, after at most `num_blocks` blocks."""
        most = self.num_blocks if num_blocks is None else min(num_blocks, self.num_blocks)
        packed = self.packed(0, most)
        return KeyChain(self.root, self._block_size, self.keys[:num_blocks], packed)

    def packed(self, begin: int, end: int) -> bytes:
        """Token ids of the full blocks from `begin` up to `end`, as `reach` has packed them."""
        step, num_head = self._block_size * _TOKEN_BYTES, self._num_head
        if end <= num_head:
            return self._head[begin * step : end * step]
        tail = self._tail[max(0, begin - num_head) : end - num_head]
        return b"".join((self._head[begin * step :], *tail))

    def block(self, index: int) -> bytes:
        """The same of one block."""
        at = index - self._num_head
        return self._tail[at] if at >= 0 else self.packed(index, index + 1)

    def blocks(self, begin: int, end: int) -> list[bytes]:
        """The same of each block from `begin` up to `end`."""
        step, num_head = self._block_size * _TOKEN_BYTES, self._num_head
        ends = range((begin + 1) * step, min(end, num_head) * step + 1, step)
        blocks = [self._head[at - step : at] for at in ends]
        if end > num_head:
            blocks += self._tail[max(0, begin - num_head) : end - num_head]
        return blocks

    def reach(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Have keys and packed tokens of at least the first `num_blocks` blocks."""
        have = self.num_blocks
        if num_blocks == have + 1:
            size = self._block_size
            wanted = token_ids[have * size : num_blocks * size]
            self._tail.append(self._block_format.pack(*wanted))
            self.num_blocks = num_blocks
        elif num_blocks > have:
            self._pack(token_ids, num_blocks)
        keys = self.keys
        while (index := len(keys)) < num_blocks:
            digest = _EMPTY.copy()
            digest.update((keys[-1] if keys else self.root) + self.block(index))
            keys.append(digest.digest())

    def _pack(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Pack all blocks up to `num_blocks` that are not packed yet."""
        have, size = self.num_blocks, self._block_size
        packed = pack_token_ids(token_ids[have * size : num_blocks * size])
        step = size * _TOKEN_BYTES
        if not have:
            self._head, self._num_head = packed, num_blocks
        else:
            self._tail += [packed[at : at + step] for at in range(0, len(packed), step)]
        self.num_blocks = num_blocks
