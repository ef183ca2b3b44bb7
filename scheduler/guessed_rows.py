"""Rows of a step that check guesses: put into a plan, and settled before the commit.

A row that decodes computes its newest token and some guesses after it, and what follows each of
them is sampled. While what is sampled equals the guess that stands there, the guess was right and
its KV is good. The rest is as if it had never been planned: its slots are written again.

    tokens of a row | newest | right guesses | the others
    their KV        | kept   | kept          | written again by the next step
    sampled after   | kept up to the first that differs from its guess; it is the row's new token

Takes only slots that a request has anyhow, and what a step has left. Units: tokens, slots.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from blockyard.scheduler.draft import PlanDraft
from blockyard.scheduler.endings import reason_to_end
from blockyard.scheduler.guess_rate import MOST_GUESSES
from blockyard.scheduler.guessing import Guesser
from blockyard.scheduler.holdings import Holdings
from blockyard.scheduler.plan import StepPlan, StepResult, guesses_told, num_right
from blockyard.scheduler.request import Request, RequestUpdate
from blockyard.scheduler.sampling import TokenLogprobs

__all__ = ["GuessedRows"]


class _Confirmed(NamedTuple):
    """Tokens of a member that were guessed right, and their log probabilities if wanted."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


class GuessedRows:
    """The rows of one scheduler that check guesses.

    Args:
        guesser: who guesses.
        holdings: whose slots they take.
        most_tokens: most in one step, guesses included.
    """

    def __init__(self, guesser: Guesser, holdings: Holdings, most_tokens: int) -> None:
        self._guesser = guesser
        self._holdings = holdings
        self._most_tokens = most_tokens
        self._confirmed: dict[tuple[str, int], _Confirmed] = {}
        self.num_guessed = 0
        """Tokens that were guessed and checked so far."""
        self.num_right = 0
        """Those of them that were right."""

    def add(self, draft: PlanDraft) -> None:
        """Let rows that decode check guesses, as far as the step has tokens left."""
        left = self._most_tokens - draft.num_tokens
        self._guesser.keep(draft.rows)
        for row, request in draft.decodes():
            known = len(request.tokens)
            room = request.table.num_writable - known
            # The last token that it may produce is sampled after the last guess.
            most = min(left, MOST_GUESSES, room, request.end_at - known - 1)
            if most < 1:
                continue
            guesses = tuple(self._guesser.guess(request, most))
            if guesses:
                draft.guess(row, guesses)
                self._holdings.promise(len(guesses))
                left -= len(guesses)

    def settle(
        self, plan: StepPlan, draft: PlanDraft, result: StepResult
    ) -> tuple[StepPlan, StepResult]:
        """Append right guesses to their requests, and take back what was planned for the others.

        Returns:
            Plan and result as if right guesses had been known and others not planned: one token
            for each sample.

        Raises:
            ValueError: workers have not made the guesses that were theirs to make.
        """
        plan = guesses_told(plan, result)
        self._confirmed = {}
        counts = list(plan.counts)
        token_ids: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        at = 0
        rows = zip(draft.rows, plan.handles, plan.samples, plan.guesses, plan.offsets, strict=True)
        for row, (request, handle, samples, guessed, offset) in enumerate(rows):
            if not samples:
                continue
            right = 0
            end = at + guessed
            if guessed and request.handle == handle:  # else its slots are off the books
                guesses = plan.token_ids[offset + counts[row] - guessed : offset + counts[row]]
                right = _append_right(request, guesses, result.token_ids[at : end + 1])
                wrong = guessed - right
                request.num_promised -= wrong
                self._holdings.withdraw(wrong)
                counts[row] -= wrong
                self._note(request, guessed, right)
                if right:
                    told = tuple(lp for lp in result.logprobs[at : at + right] if lp is not None)
                    self._confirmed[request.member] = _Confirmed(guesses[:right], told)
            token_ids.append(result.token_ids[at + right])
            logprobs += result.logprobs[at + right : at + right + 1]
            at = end + 1
        token_ids += result.token_ids[at:]
        logprobs += result.logprobs[at:]
        plan = replace(plan, counts=tuple(counts), guesses=())
        return plan, replace(result, token_ids=tuple(token_ids), logprobs=tuple(logprobs))

    def tell(self, updates: list[RequestUpdate]) -> list[RequestUpdate]:
        """The news of the step settled last, right guesses before what was sampled after them."""
        told = []
        for update in updates:
            found = self._confirmed.get((update.request_id, update.choice))
            if found is not None:
                update = update._replace(
                    token_ids=found.token_ids + update.token_ids,
                    logprobs=found.logprobs + update.logprobs,
                )
            told.append(update)
        return told

    def _note(self, request: Request, guessed: int, right: int) -> None:
        self.num_guessed += guessed
        self.num_right += right
        self._guesser.learn(request, guessed, right)


def _append_right(request: Request, guesses: Sequence[int], sampled: Sequence[int]) -> int:
    """Append right guesses, up to before one that ends the request; how many."""
    for right, token in enumerate(guesses[: num_right(guesses, sampled)]):
        request.tokens.append(token)
        if reason_to_end(request, token) is not None:
            request.tokens.pop()
            return right
    return num_right(guesses, sampled)
