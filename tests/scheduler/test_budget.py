import pytest

from blockyard.scheduler.budget import StepBudget


def test_one_token_is_kept_for_everyone_who_has_not_had_a_turn() -> None:
    budget = StepBudget(10)
    # A long prompt first, three decodes behind it.
    assert budget.share(100, later=3) == 7
    budget.spend(7)
    for later in (2, 1, 0):
        assert budget.share(1, later) == 1
        budget.spend(1)
    assert budget.left == 0


def test_two_prompts_share_in_order_and_both_advance() -> None:
    budget = StepBudget(10)
    budget.spend(budget.share(100, later=1))
    assert budget.share(100, later=0) == 1


def test_a_short_prompt_leaves_the_rest() -> None:
    budget = StepBudget(10)
    budget.spend(budget.share(4, later=2))
    assert budget.share(100, later=1) == 5


@pytest.mark.parametrize("count", [0, -1, 11])
def test_spending_what_is_not_there_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="10 left"):
        StepBudget(10).spend(count)
