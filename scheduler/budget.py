"""How one step's tokens are shared out. Knows only counts; units: tokens.

One token is kept back for each running request that has not had its turn. A decoding request
needs no more than that, so it never waits for a neighbour's prompt; what is left goes to prefill
chunks in order of urgency. Since a step may compute more tokens than requests can run, the first
prefill always gets something.
"""

__all__ = ["StepBudget"]


class StepBudget:
    """Tokens that the step being planned may still compute."""

    def __init__(self, max_step_tokens: int) -> None:
        self.left = max_step_tokens

    def share(self, wanted: int, later: int) -> int:
        """Tokens for a request that wants `wanted`, while `later` requests wait for their turn.

        Nothing is taken yet; `spend` does, once it is known how many have room.
        """
        return min(wanted, self.left - later)

    def spend(self, count: int) -> None:
        """Take tokens that are planned."""
        if not 0 < count <= self.left:
            raise ValueError(f"{count} tokens planned, {self.left} left in the step")
        self.left -= count
