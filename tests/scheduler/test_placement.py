from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.placement import Candidate, choose_group


def group(
    group_id: str,
    free: int = 10,
    cached: int = 0,
    running: int = 0,
    waiting: int = 0,
    parked: int = 0,
    bound_tokens: int = 0,
    known: int = 0,
) -> Candidate:
    ledger = GroupLedger(
        blocks=BlockCounts(
            total=100, free=free, cached=cached, active=100 - free - cached, fenced=0
        ),
        slots=SlotCounts(filled=0, promised=0, empty_tail=0),
        requests=RequestCounts(running=running, waiting=waiting, parked=parked),
        block_size=4,
        step=0,
        preemptions=0,
        stalled_steps=0,
    )
    return Candidate(group_id, ledger, bound_tokens, known)


def test_without_groups_there_is_no_choice() -> None:
    assert choose_group([], 1) is None


def test_any_group_is_better_than_none() -> None:
    assert choose_group([group("a", free=0, waiting=99)], 1000) == "a"


def test_the_group_with_room_comes_before_the_one_with_a_queue() -> None:
    assert choose_group([group("a", free=90, waiting=1), group("b", free=5)], 8) == "b"
    assert choose_group([group("a", free=90, parked=1), group("b", free=5)], 8) == "b"


def test_a_group_that_lacks_the_blocks_counts_as_one_more_in_the_queue() -> None:
    # 9 tokens take three blocks of 4.
    assert choose_group([group("a", free=2), group("b", free=3, waiting=1)], 9) == "b"
    assert choose_group([group("a", free=2), group("b", free=3, running=50)], 9) == "b"
    assert choose_group([group("a", free=2, waiting=1), group("b", free=3, waiting=3)], 9) == "a"


def test_blocks_that_can_be_reclaimed_are_as_good_as_free_ones() -> None:
    assert choose_group([group("a", free=4), group("b", free=2, cached=3)], 4) == "b"


def test_the_most_free_blocks_win_then_the_fewest_running_then_the_name() -> None:
    assert choose_group([group("a", free=10), group("b", free=11, running=9)], 4) == "b"
    assert choose_group([group("a", running=2), group("b", running=1)], 4) == "b"
    assert choose_group([group("b"), group("a")], 4) == "a"


def test_what_was_bound_since_the_last_books_counts_as_taken() -> None:
    assert group("a", free=10, bound_tokens=9).free_blocks == 7
    assert choose_group([group("a", free=10, bound_tokens=1), group("b", free=10)], 4) == "b"
    # Rounded up: one token takes a block.
    assert choose_group([group("a", free=10, bound_tokens=5), group("b", free=9)], 4) == "b"


def test_the_longest_known_prefix_wins_among_equals() -> None:
    equals = [group("a", known=2), group("b", known=5), group("c")]
    assert choose_group(equals, 40) == "b"


def test_a_prefix_is_worth_the_blocks_that_it_saves() -> None:
    # 5 known blocks make up for 5 that are taken, not for more.
    assert choose_group([group("a", free=20), group("b", free=16, known=5)], 40) == "b"
    assert choose_group([group("a", free=20), group("b", free=14, known=5)], 40) == "a"
    # Nobody waits in a queue for it.
    assert choose_group([group("a", free=20), group("b", free=20, known=9, waiting=1)], 40) == "a"


def test_known_blocks_need_not_be_free() -> None:
    assert choose_group([group("a", free=9), group("b", free=2, known=8)], 40) == "b"
