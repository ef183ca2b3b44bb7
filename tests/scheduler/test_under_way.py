"""What tenants have under way is what their live requests' prompts really cost."""

from collections.abc import Callable
from typing import Any

from blockyard.scheduler.under_way import UnderWay, under_way

Make = Callable[..., Any]


def test_what_was_found_costs_nothing_whichever_choice_is_left(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=60, max_step_tokens=32)
    prompt = prompt_of(21)
    rig.submit("first", prompt, max_tokens=1, tenant="a")
    rig.finish()
    assert under_way(rig.scheduler) == ()
    rig.submit("again", prompt, max_tokens=9, tenant="b", num_choices=2)
    rig.submit("other", prompt_of(6, 7), max_tokens=9, tenant="b", priority=1)
    assert set(under_way(rig.scheduler)) == {UnderWay(0, "b", 21), UnderWay(1, "b", 6)}
    rig.step()
    rig.step()
    for _ in range(2):  # blocks of four: five of the prompt are found
        assert set(under_way(rig.scheduler)) == {UnderWay(0, "b", 1), UnderWay(1, "b", 6)}
        rig.abort_choice("again", 0)
    rig.finish()
    assert under_way(rig.scheduler) == ()


def test_one_that_lost_its_place_counts_once(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=8, max_running=1)
    rig.submit("low", prompt_of(10), max_tokens=12, tenant="a")
    for _ in range(4):
        rig.step()
    rig.submit("high", prompt_of(20, 5), max_tokens=6, priority=1, tenant="b")
    rig.step()
    assert rig.scheduler.ledger().requests.parked == 1
    assert set(under_way(rig.scheduler)) == {UnderWay(0, "a", 10), UnderWay(1, "b", 20)}
    rig.finish()
