"""Names of blocks by content: chained digests, the same in every process.

A key names everything up to the end of a full block: the block's token ids, its parent's key, and
at the root what else decides the KV (adapter, salt, weights). Knows neither blocks nor requests.
Units: token ids; a key is 16 bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from hashlib import blake2b
from struct import Struct, pack

__all__ = [
    "KEY_BYTES",
    "MAX_TOKEN_ID",
    "NO_EXTRAS",
    "KeyChain",
    "PrefixExtras",
    "PromptKeys",
    "block_keys",
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
    """Keys of one prompt's full blocks, made once for each size of blocks that is asked for."""

    __slots__ = ("_extras", "_keys", "_token_ids")

    def __init__(self, token_ids: Sequence[int], extras: PrefixExtras) -> None:
        self._token_ids = token_ids
        self._extras = extras
        self._keys: dict[int, tuple[bytes, ...]] = {}

    def of(self, block_size: int) -> tuple[bytes, ...]:
        """From the first block on."""
        keys = self._keys.get(block_size)
        if keys is None:
            keys = self._keys[block_size] = block_keys(self._token_ids, block_size, self._extras)
        return keys


@cache
def _block_format(block_size: int) -> Struct:
    """How a block's token ids are packed. Made once: it takes as long as the rest of a chain."""
    return Struct(f"<{block_size}I")


class KeyChain:
    """Keys and packed token ids of a growing sequence's full blocks, made when first asked for.

    Args:
        root: key of the parent of the first block.
        block_size: token ids in a block.
        hints: keys that somebody computed already, from the first block on. They are believed, so
            whoever finds something under a key must compare the packed tokens too.
    """

    __slots__ = ("_block_format", "_block_size", "blocks", "keys", "root")

    def __init__(self, root: bytes, block_size: int, hints: Sequence[bytes] = ()) -> None:
        self.root = root
        self.keys: list[bytes] = list(hints)
        self.blocks: list[bytes] = []
        """Token ids of each full block, packed."""
        self._block_size = block_size
        self._block_format = _block_format(block_size)

    def copy(self, num_blocks: int | None = None) -> "KeyChain":
        """A chain that may grow on in another way, after at most `num_blocks` blocks."""
        other = KeyChain(self.root, self._block_size, self.keys[:num_blocks])
        other.blocks = self.blocks[:num_blocks]
        return other

    def reach(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Have keys and packed tokens of at least the first `num_blocks` blocks."""
        have = len(self.blocks)
        if num_blocks <= have:
            return
        size = self._block_size
        wanted = token_ids[have * size : num_blocks * size]
        if num_blocks == have + 1:
            self.blocks.append(self._block_format.pack(*wanted))
        else:
            packed = pack(f"<{len(wanted)}I", *wanted)
            step = size * _TOKEN_BYTES
            self.blocks.extend(packed[at : at + step] for at in range(0, len(packed), step))
        keys = self.keys
        while len(keys) < num_blocks:
            parent = keys[-1] if keys else self.root
            block = self.blocks[len(keys)]
            keys.append(blake2b(parent + block, digest_size=KEY_BYTES).digest())
