import pytest

from blockyard.scheduler.block_keys import KeyChain
from blockyard.scheduler.prefix_index import GONE, PrefixEntry, PrefixIndex, StoredBlock

ROOT = b"root"


def chain_of(*tokens: int, root: bytes = ROOT, hints: tuple[bytes, ...] = ()) -> KeyChain:
    chain = KeyChain(root, 2, hints)
    chain.reach(tokens, len(tokens) // 2)
    return chain


def store(index: PrefixIndex, chain: KeyChain, first_block: int = 0) -> list[PrefixEntry]:
    """Add what is missing of a chain."""
    path: list[PrefixEntry] = []
    index.extend(path, chain, chain.num_blocks)
    for at in range(len(path), chain.num_blocks):
        parent = path[-1] if path else None
        entry = index.store(parent, chain, at, first_block + at)
        assert entry is not None
        path.append(entry)
    index.check()
    return path


def found(index: PrefixIndex, chain: KeyChain) -> list[int]:
    path: list[PrefixEntry] = []
    index.extend(path, chain, chain.num_blocks)
    return [entry.block_id for entry in path]


def test_a_chain_is_found_up_to_its_first_difference() -> None:
    index = PrefixIndex()
    store(index, chain_of(1, 2, 3, 4, 5, 6), first_block=10)
    assert found(index, chain_of(1, 2, 3, 4, 5, 6, 7, 8)) == [10, 11, 12]
    assert found(index, chain_of(1, 2, 3, 9, 5, 6)) == [10]
    assert found(index, chain_of(3, 4, 5, 6)) == []
    assert found(index, chain_of(1, 2, 3, 4, 5, 6, root=b"other")) == []
    limited: list[PrefixEntry] = []
    index.extend(limited, chain_of(1, 2, 3, 4), 1)
    assert [entry.block_id for entry in limited] == [10]


def test_a_wrong_key_never_gives_a_hit() -> None:
    index = PrefixIndex()
    first = chain_of(1, 2, 3, 4)
    store(index, first)
    hints = tuple(first.keys)
    assert found(index, chain_of(1, 9, 3, 4, hints=hints)) == []
    assert found(index, chain_of(1, 2, 3, 9, hints=hints)) == [0]
    # Equal tokens, but under another root or another parent.
    assert found(index, chain_of(1, 2, 3, 4, root=b"other", hints=hints)) == []
    assert found(index, chain_of(3, 4, hints=hints[1:])) == []
    for other in (chain_of(1, 9, hints=hints), chain_of(1, 2, root=b"x", hints=hints)):
        assert index.store(None, other, 0, 7) is None
    index.check()


@pytest.mark.parametrize("num_there", [0, 1, 2, 4])
def test_blocks_that_are_stored_at_once_are_as_if_one_by_one(num_there: int) -> None:
    tokens = (1, 2, 3, 4, 5, 6, 7, 8)
    one_by_one, at_once = PrefixIndex(), PrefixIndex()
    for index in (one_by_one, at_once):
        there = store(index, chain_of(*tokens[: 2 * num_there], 9, 9), first_block=20)
        index.remove(there[-1].block_id)
        index.take_events()
    store(one_by_one, chain_of(*tokens), first_block=10)
    path: list[PrefixEntry] = []
    chain = chain_of(*tokens)
    at_once.extend(path, chain, 4)
    run = at_once.store_run(path[-1] if path else None, chain, num_there, range(10 + num_there, 14))
    at_once.check()
    assert [entry.block_id for entry in run] == list(range(10 + num_there, 14))
    assert at_once.snapshot() == one_by_one.snapshot()
    assert at_once.take_events() == one_by_one.take_events()
    assert found(at_once, chain) == found(one_by_one, chain)


def test_what_is_stored_at_once_ends_before_a_key_that_is_known() -> None:
    index = PrefixIndex()
    true = chain_of(1, 2, 3, 4, 5, 6)
    store(index, true)
    index.remove(2)
    # The second block's key is somebody else's: whether it is a hit is not for a run to decide.
    other = chain_of(7, 8, 3, 4, 5, 6, hints=(b"new", true.keys[1], b"newer"))
    assert [entry.key for entry in index.store_run(None, other, 0, (7, 8, 9))] == [b"new"]
    index.check()


def test_what_is_stored_at_once_ends_before_a_key_that_it_has_had() -> None:
    index = PrefixIndex()
    chain = chain_of(1, 2, 3, 4, 5, 6, hints=(b"one", b"two", b"one"))
    assert [entry.key for entry in index.store_run(None, chain, 0, (7, 8, 9))] == [b"one", b"two"]
    index.check()


def test_an_old_match_is_taken_anew() -> None:
    index = PrefixIndex()
    chain = chain_of(1, 2, 3, 4, 5, 6)
    path = store(index, chain)
    index.remove(2)
    index.remove(1)
    assert path[-1].block_id == GONE
    entry = index.store(path[0], chain, 1, 5)
    assert index.store(path[0], chain, 1, 6) is entry, "an equal block is there already"
    index.extend(path, chain, 3)
    assert path == [path[0], entry]
    index.remove(5)
    index.remove(0)
    index.extend(path, chain, 3)
    assert path == []


def test_a_parent_stays_until_its_children_are_gone() -> None:
    index = PrefixIndex()
    store(index, chain_of(1, 2, 3, 4))
    store(index, chain_of(1, 2, 5, 6), first_block=4)
    with pytest.raises(ValueError, match="block 0 leaves the index before 2 more"):
        index.remove(0)
    index.remove(1)
    index.remove(5)
    index.remove(0)
    index.check()
    assert len(index) == 0


def test_events_are_the_difference_to_the_last_time() -> None:
    index = PrefixIndex()
    chain = chain_of(1, 2, 3, 4)
    store(index, chain)
    events = index.take_events()
    both = (StoredBlock(chain.keys[0], ROOT), StoredBlock(chain.keys[1], chain.keys[0]))
    assert (events.removed, events.stored) == ((), both)
    assert index.snapshot() == both
    index.remove(1)
    index.remove(0)
    store(index, chain_of(1, 2))
    store(index, chain_of(7, 8), first_block=8)
    index.remove(8)
    events = index.take_events()
    assert (events.removed, events.stored) == ((chain.keys[1],), ())
    index.clear()
    assert index.take_events().removed == (chain.keys[0],)
    assert index.take_events() == PrefixIndex().take_events()


def test_unread_events_do_not_grow_without_bound() -> None:
    index = PrefixIndex()
    for number in range(100):
        store(index, chain_of(number, number))
        index.remove(0)
    events = index.take_events()
    assert (events.removed, events.stored) == ((), ())


def test_check_sees_what_is_wrong() -> None:
    index = PrefixIndex()
    first, second = store(index, chain_of(1, 2, 3, 4))
    second.block_id = 9
    with pytest.raises(AssertionError, match="block 9 is indexed under a wrong key"):
        index.check()
    second.block_id = 1
    first.num_children = 2
    with pytest.raises(AssertionError, match="block 0 has 1 children, 2 are counted"):
        index.check()
    first.num_children = 1
    del index._entries[first.key], index._by_block[0]
    with pytest.raises(AssertionError, match="block 1 is indexed without its parent"):
        index.check()
