import subprocess
import sys
from hashlib import blake2b

import pytest

from blockyard.scheduler.block_keys import (
    KEY_BYTES,
    MAX_TOKEN_ID,
    KeyChain,
    PrefixExtras,
    block_keys,
    pack_token_ids,
    root_key,
)

PROMPT = tuple(range(100, 140))


def test_a_key_names_all_tokens_up_to_its_blocks_end() -> None:
    keys = block_keys(PROMPT, 4, PrefixExtras())
    assert len(keys) == len(set(keys)) == 10
    assert all(len(key) == KEY_BYTES for key in keys)
    for position in range(40):
        changed = [*PROMPT]
        changed[position] += 256
        other = block_keys(changed, 4, PrefixExtras())
        same = [a == b for a, b in zip(keys, other, strict=True)]
        assert same == [index < position // 4 for index in range(10)]


def test_a_key_is_the_digest_of_parent_and_little_endian_tokens() -> None:
    root = root_key(PrefixExtras())
    (key,) = block_keys((1, 2**32 - 1), 2, PrefixExtras())
    assert key == blake2b(root + b"\1\0\0\0\xff\xff\xff\xff", digest_size=16).digest()


def test_keys_are_the_same_in_every_process() -> None:
    script = (
        "from blockyard.scheduler.block_keys import *;"
        f"print(block_keys({PROMPT}, 16, PrefixExtras(adapter='a', salt='s'))[-1].hex())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    here = block_keys(PROMPT, 16, PrefixExtras(adapter="a", salt="s"))[-1].hex()
    assert printed == {here} == {"863c152d656c4e56b21caeefe316838a"}


@pytest.mark.parametrize("value", ["a", "ab"])
def test_extras_of_different_kinds_never_meet(value: str) -> None:
    kinds = ("adapter", "adapter_version", "salt", "weight_version")
    roots = {root_key(PrefixExtras(**{kind: value})) for kind in kinds}
    roots.add(root_key(PrefixExtras()))
    assert len(roots) == 5


def test_extras_cannot_be_shifted_into_one_another() -> None:
    assert root_key(PrefixExtras("ab", "c")) != root_key(PrefixExtras("a", "bc"))
    assert root_key(PrefixExtras("a\x05salt")) != root_key(PrefixExtras("a", salt="t"))


def test_a_chain_grows_block_by_block_or_at_once() -> None:
    root = root_key(PrefixExtras())
    slow, fast = KeyChain(root, 4), KeyChain(root, 4)
    for count in range(11):
        slow.reach(PROMPT, count)
    fast.reach(PROMPT, 10)
    fast.reach(PROMPT, 3)
    assert slow.keys == fast.keys == list(block_keys(PROMPT, 4, PrefixExtras()))
    assert slow.packed(0, 10) == fast.packed(0, 10) == pack_token_ids(PROMPT[:40])
    for begin, end in ((0, 1), (3, 4), (2, 7), (9, 10)):
        assert slow.packed(begin, end) == fast.packed(begin, end)


def test_a_chain_that_was_given_packed_tokens_goes_on_after_the_last_full_block() -> None:
    root = root_key(PrefixExtras())
    chain = KeyChain(root, 4, packed=pack_token_ids(PROMPT[:22]))
    assert (chain.num_blocks, chain.keys) == (5, [])
    chain.reach(PROMPT, 3)
    chain.reach(PROMPT, 7)
    assert chain.keys == list(block_keys(PROMPT[:28], 4, PrefixExtras()))
    for begin, end in ((0, 7), (4, 6), (5, 7), (6, 7)):
        assert chain.packed(begin, end) == pack_token_ids(PROMPT[4 * begin : 4 * end])
    branch = chain.copy(6)
    branch.reach([*PROMPT[:24], 0, 0, 0, 0], 7)
    assert branch.keys[:6] == chain.keys[:6] and branch.keys[6] != chain.keys[6]
    assert branch.packed(5, 7) == pack_token_ids([*PROMPT[20:24], 0, 0, 0, 0])


def test_blocks_are_told_together_or_one_by_one() -> None:
    tokens = tuple(range(1, 13))
    chain = KeyChain(b"root", 2, packed=pack_token_ids(tokens[:7]))
    chain.reach(tokens, 6)
    one_by_one = [chain.block(index) for index in range(6)]
    assert one_by_one == [pack_token_ids(tokens[at : at + 2]) for at in range(0, 12, 2)]
    for begin in range(7):
        for end in range(begin, 7):
            assert chain.blocks(begin, end) == one_by_one[begin:end]


def test_token_ids_that_are_none_are_not_packed() -> None:
    for token in (-1, MAX_TOKEN_ID + 1):
        with pytest.raises(OverflowError):
            pack_token_ids([1, token])


def test_a_chain_goes_on_from_the_keys_it_was_given() -> None:
    root = root_key(PrefixExtras())
    given = block_keys(PROMPT[:20], 4, PrefixExtras())
    chain = KeyChain(root, 4, given)
    chain.reach(PROMPT, 10)
    assert chain.keys == list(block_keys(PROMPT, 4, PrefixExtras()))
    wrong = KeyChain(root, 4, (b"x" * 16,))
    wrong.reach(PROMPT, 2)
    assert wrong.keys[0] == b"x" * 16
    assert wrong.keys[1] == blake2b(b"x" * 16 + wrong.packed(1, 2), digest_size=16).digest()
