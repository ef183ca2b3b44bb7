"""Rows that check guesses: what is sampled after each, and how far it came true.

Sampling depends on position and on the tokens before alone, so a token that is sampled after right
guesses is the one that single steps would have sampled. Units: tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blockyard.scheduler.plan import num_right
from blockyard.workers.sampler import SampledTokens, SampleRow

__all__ = ["GuessedRow", "reached", "rules_ahead"]

_NOT_SAMPLED = -1


@dataclass(frozen=True, slots=True)
class GuessedRow:
    """Guesses of one handle, from `position` on.

    What follows the token before them is sampled by row `first` of a batch's sample rows, what
    follows each of them by the rows after it. They stand in row `row` of the batch, from `place` on
    among all of its tokens.
    """

    handle: int
    first: int
    position: int
    token_ids: tuple[int, ...]
    row: int = 0
    place: int = 0

    @property
    def end(self) -> int:
        """The sample row after its last one."""
        return self.first + len(self.token_ids) + 1


def rules_ahead(rows: Sequence[SampleRow], guessed: Sequence[GuessedRow]) -> tuple[SampleRow, ...]:
    """Sample rows whose rules know the guesses before them."""
    ahead = list(rows)
    for one in guessed:
        rules = rows[one.first].rules
        if rules is None:
            continue
        for place, token in enumerate(one.token_ids):
            rules = rules.child(rules.sampling)
            rules.record(one.position + place, (token,))
            ahead[one.first + place + 1] = replace(ahead[one.first + place + 1], rules=rules)
    return tuple(ahead)


def reached(sampled: SampledTokens, guessed: Sequence[GuessedRow]) -> SampledTokens:
    """Without the failures of rows behind a wrong guess: single steps would never see them.

    Where a row fails that is reached, its token becomes one that no guess equals.
    """
    if not guessed:
        return sampled
    token_ids = list(sampled.token_ids)
    behind: set[int] = set()
    for one in guessed:
        for row in range(one.first, one.end):
            if row in sampled.failed:
                token_ids[row] = _NOT_SAMPLED
        right = num_right(one.token_ids, token_ids[one.first : one.end])
        behind.update(range(one.first + right + 1, one.end))
    return replace(
        sampled,
        token_ids=tuple(token_ids),
        failed=tuple(row for row in sampled.failed if row not in behind),
        emptied=tuple(row for row in sampled.emptied if row not in behind),
    )
