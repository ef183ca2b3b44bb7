from collections.abc import Callable
from typing import Any

import pytest

from blockyard.scheduler.block_keys import KeyChain
from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.prefix_index import PrefixEntry
from blockyard.scheduler.prefix_waits import PATIENCE_STEPS, PrefixWaits
from blockyard.scheduler.request import Request, RequestSpec, RequestState
from blockyard.scheduler.sampling import SamplingParams

Make = Callable[..., Any]


def request(sequence: int, *tokens: int, priority: int = 0) -> Request:
    made = Request(
        spec=RequestSpec(f"r{sequence}", tokens, SamplingParams(), priority),
        sequence=sequence,
        max_tokens=4,
        table=BlockTable(2),
        arrived_at=0.0,
        tokens=list(tokens),
    )
    made.chain = KeyChain(b"root", 2)
    made.chain.reach(made.tokens, len(tokens) // 2)
    return made


def owner(waits: PrefixWaits, sequence: int, *tokens: int) -> Request:
    made = request(sequence, *tokens)
    made.state = RequestState.RUNNING
    waits.announce(made)
    return made


def publish(waits: PrefixWaits, made: Request, count: int) -> list[Request]:
    assert made.chain is not None
    begin = len(made.path)
    for at in range(begin, begin + count):
        made.path.append(PrefixEntry(made.chain.keys[at], None, b"", b"", at))
    return waits.withdraw(made, begin, begin + count)


def test_who_shares_blocks_under_way_waits_for_the_last_of_them() -> None:
    waits = PrefixWaits()
    first = owner(waits, 0, 1, 2, 3, 4, 5, 6, 7, 8)
    second = request(1, 1, 2, 3, 4, 5, 6, 9, 9)
    assert waits.hold(second, step=1)
    waits.check()
    assert waits.members() == (second,)
    assert publish(waits, first, 2) == []
    assert publish(waits, first, 1) == [second]
    assert len(waits) == 0


def test_nobody_waits_for_what_it_must_compute_itself() -> None:
    waits = PrefixWaits()
    owner(waits, 0, 1, 2, 3, 4)
    # The last block of an equal prompt holds its last token.
    second = request(1, 1, 2, 3, 4)
    assert waits.hold(second, step=1)
    assert not waits.hold(request(2, 1, 2), step=1)
    assert not waits.hold(request(3, 9, 9, 3, 4, 5), step=1)


def test_nobody_waits_for_the_less_urgent_nor_who_was_parked() -> None:
    waits = PrefixWaits()
    owner(waits, 5, 1, 2, 3, 4)
    assert not waits.hold(request(4, 1, 2, 3, 4), step=1)
    assert not waits.hold(request(6, 1, 2, 3, 4, priority=1), step=1)
    parked = request(7, 1, 2, 3, 4)
    parked.state = RequestState.PARKED
    assert not waits.hold(parked, step=1)
    assert waits.hold(request(8, 1, 2, 3, 4), step=1)


def test_a_request_that_leaves_wakes_all_who_wait_for_it() -> None:
    waits = PrefixWaits()
    first = owner(waits, 0, 1, 2, 3, 4)
    waiting = [request(1, 1, 2, 3, 4), request(2, 1, 2, 9, 9)]
    assert all(waits.hold(one, step=1) for one in waiting)
    assert waits.remove("r1") is waiting[0]
    assert waits.remove("r1") is None
    assert waits.withdraw(first, 0, first.num_announced) == waiting[1:]
    waits.check()
    assert not waits.hold(request(3, 1, 2, 3, 4), step=1)


def test_patience_ends_unless_the_other_gets_on() -> None:
    waits = PrefixWaits()
    first = owner(waits, 0, 1, 2, 3, 4, 5, 6)
    second = request(1, 1, 2, 3, 4, 5, 6)
    assert waits.hold(second, step=1)
    assert waits.expire(1 + PATIENCE_STEPS) == []
    publish(waits, first, 1)
    late = 2 + PATIENCE_STEPS
    assert waits.expire(late) == []
    assert waits.expire(late + PATIENCE_STEPS) == []
    assert waits.expire(late + PATIENCE_STEPS + 1) == [second]
    assert not waits.hold(second, step=99)
    waits.check()


def test_check_names_who_would_wait_for_ever() -> None:
    waits = PrefixWaits()
    first = owner(waits, 0, 1, 2, 3, 4)
    waits.hold(request(1, 1, 2, 3, 4), step=1)
    first.state = RequestState.PARKED
    with pytest.raises(AssertionError, match="request 'r0' is parked, yet computes"):
        waits.check()
    first.state = RequestState.RUNNING
    waits._owners.clear()
    with pytest.raises(AssertionError, match="request 'r1' waits for a block nobody computes"):
        waits.check()


def test_those_who_wait_hold_nobody_up(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=200, max_running=8, max_step_tokens=90)
    rig.submit("first", prompt_of(80), max_tokens=4)
    for copy in range(20):
        rig.submit(f"copy {copy}", prompt_of(80), max_tokens=4)
    rig.submit("other", prompt_of(4, 1), max_tokens=1)
    rig.step()
    assert rig.started == ["first", "other"]
    assert rig.scheduler.ledger().requests.waiting == 20
    rig.finish()
    assert [rig.cached[f"copy {copy}"] for copy in range(20)] == [76] * 20


def test_those_who_wait_go_on_when_the_other_is_aborted(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=100, max_step_tokens=16)
    rig.submit("first", prompt_of(60), max_tokens=4)
    for name in ("second", "third"):
        rig.submit(name, prompt_of(60), max_tokens=4)
    rig.step()
    rig.step()
    rig.abort("third")
    rig.abort("first")
    rig.step()
    assert rig.started == ["first", "second"]
    rig.finish()
    assert rig.cached["second"] == 32


def test_aborted_in_flight_its_blocks_are_not_waited_for(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=100, max_step_tokens=16)
    rig.submit("first", prompt_of(60), max_tokens=4)
    rig.submit("second", prompt_of(60), max_tokens=4)
    rig.plan()
    rig.abort("first")
    rig.check()
    rig.commit()
    rig.finish()
    assert rig.ended == ["second"]
