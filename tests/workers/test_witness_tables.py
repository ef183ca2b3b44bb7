"""Every way for a plan to break the protocol, and that the witness names it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blockyard.scheduler.plan import StepPlan
from blockyard.workers.fake import WitnessWorker
from blockyard.workers.witness_tables import PlanRefused

Planner = Callable[..., StepPlan]
Maker = Callable[..., WitnessWorker]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"rows": {9: (0, (1,))}}, "handle 9, which is unknown"),
        ({"grants": {9: (1,)}, "rows": {1: (5, (1,))}}, "handle 9, which is unknown"),
        ({"forgotten": (9,), "rows": {1: (5, (1,))}}, "forgets handle 9"),
        ({"forgotten": (1,), "rows": {1: (5, (1,))}}, "handle 1, which is unknown"),
        ({"admitted": (1,), "rows": {1: (0, (1,))}}, "admits handle 1 again"),
        ({"grants": {1: (8,)}, "rows": {1: (5, (1,))}}, "block 8, the pool has 8"),
        ({"grants": {1: (-1,)}, "rows": {1: (5, (1,))}}, "block -1"),
        ({"grants": {1: (5,)}, "rows": {1: (5, (1,))}}, "block 5 to handle 1 twice"),
        ({"rows": {1: (4, (1,))}}, "at 4, it has 5 tokens"),
        ({"rows": {1: (6, (1,))}}, "at 6, it has 5 tokens"),
        ({"rows": {1: (5, (1, 2, 3, 4))}}, "to 9 tokens, its blocks hold 8"),
        ({"rows": {1: (5, (50_000,))}}, "token outside 0 to 49999"),
        ({"admitted": (2,), "grants": {2: (3,)}, "rows": {2: (-1, (1,))}}, "handle 2 at -1"),
        ({"admitted": (2,), "grants": {2: (3,)}, "rows": {2: (4, (1,))}}, "its blocks hold 4"),
        ({"replaced": ((9, 0, 3),)}, "handle 9, which is unknown"),
        ({"replaced": ((1, 2, 3),)}, "entry 2 of handle 1, whose table has 2"),
        ({"replaced": ((1, -1, 3),)}, "entry -1 of handle 1"),
        ({"replaced": ((1, 0, 8),)}, "block 8, the pool has 8"),
        ({"replaced": ((1, 0, 2),)}, "block 2 in the table of handle 1 twice"),
        ({"out": {8: 0}}, "block 8, the pool has 8"),
        ({"out": {5: 4}}, "host block 4, the host pool has 4"),
        ({"out": {5: 1, 2: 1}}, "fills host block 1 2 times"),
        ({"copies": ((-1, 3),)}, "block -1"),
        ({"copies": ((5, 8),)}, "block 8, the pool has 8"),
        ({"copies": ((5, 3), (2, 3))}, "fills block 3 2 times"),
        ({"copies": ((5, 3), (3, 4))}, "copies block 3 and copies another over it"),
        ({"copies": ((5, 2),)}, "over block 2, which a table holds filled"),
        ({"back": {-1: 3}}, "host block -1"),
        ({"back": {0: 8}}, "block 8, the pool has 8"),
        ({"back": {0: 3, 1: 3}}, "fills block 3 2 times"),
        ({"copies": ((5, 3),), "back": {1: 3}}, "fills block 3 2 times"),
        ({"back": {0: 5}}, "over block 5, which a table holds filled"),
        ({"rows": {1: (5, (1,))}, "forks": ((1, 1),)}, "forks into handle 1 again"),
        ({"rows": {1: (5, (1,))}, "forks": ((1, 2), (1, 2))}, "forks twice"),
        (
            {"admitted": (2,), "rows": {1: (5, (1,))}, "forks": ((1, 2),)},
            "forks into handle 2 again",
        ),
        ({"step": 3, "rows": {1: (5, (1,))}}, "step 3 came after step 1"),
        ({"step": 1, "rows": {1: (5, (1,))}}, "step 1 came after step 1"),
    ],
)
def test_plans_that_break_the_protocol_are_refused(
    plan: Planner, make: Maker, first: StepPlan, broken: dict[str, Any], message: str
) -> None:
    worker = make()
    worker.execute(first)
    with pytest.raises(PlanRefused, match=message):
        worker.execute(plan(**{"step": 2, **broken}))


def test_a_handle_never_comes_back_and_columns_must_agree(
    plan: Planner, make: Maker, first: StepPlan
) -> None:
    worker = make()
    worker.execute(first)
    again = plan(2, forgotten=(1,), admitted=(1,), grants={1: (5,)}, rows={1: (0, (1,))})
    with pytest.raises(PlanRefused, match="admits handle 1 again"):
        worker.execute(again)
    with pytest.raises(AssertionError, match="counts add up"):
        worker.execute(replace(first, step=2, token_ids=(1,)))
    with pytest.raises(AssertionError, match="forks from 9, which does not sample"):
        worker.execute(plan(2, rows={1: (5, (1,))}, forks=((9, 2),)))
    silent = replace(plan(2, rows={1: (5, (1,))}, forks=((1, 2),)), samples=(False,))
    with pytest.raises(AssertionError, match="forks from 1, which does not sample"):
        worker.execute(silent)
