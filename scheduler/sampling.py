"""How one request wants its tokens chosen, resolved and checked: data only, no sampling here.

Sampling is a pure function of (logits, these parameters, seed, choice, position), so this value
plus the tokens so far is all that is needed to continue a request anywhere.
"""

import math
from dataclasses import dataclass

__all__ = ["GREEDY_TEMPERATURE", "MAX_STOP_TOKEN_IDS", "InvalidParameter", "SamplingParams"]

GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature the most likely token is taken (dividing by less overflows fp32)."""

MAX_STOP_TOKEN_IDS = 64


class InvalidParameter(ValueError):
    """A caller's parameter is out of range; `field` is its public name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Resolved sampling parameters of one request.

    Attributes:
        max_tokens: most tokens to produce; None means as many as fit.
        temperature: softmax temperature; at most `GREEDY_TEMPERATURE` means greedy.
        top_p: smallest set of tokens whose probability reaches this, in (0, 1].
        top_k: the most likely tokens to choose from; 0 means all.
        seed: 64-bit seed, drawn by the ingress when the client gave none.
        min_tokens: stop tokens are masked until this many tokens were produced.
        stop_token_ids: tokens that end the request (the model's EOS ids unless ignored).
        choice: index of this completion among the request's `n`.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    choice: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature <= GREEDY_TEMPERATURE

    def __post_init__(self) -> None:
        """Refuse values outside their range, naming the field."""
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidParameter("max_tokens", f"is {self.max_tokens}; it must be at least 1")
        if not math.isfinite(self.temperature) or not 0.0 <= self.temperature <= 100.0:
            raise InvalidParameter(
                "temperature", f"is {self.temperature}; it must be a number from 0 to 100"
            )
        if not math.isfinite(self.top_p) or not 0.0 < self.top_p <= 1.0:
            raise InvalidParameter("top_p", f"is {self.top_p}; it must be above 0 and at most 1")
        if self.top_k < 0:
            raise InvalidParameter("top_k", f"is {self.top_k}; it must be 0 (all) or more")
        if not 0 <= self.seed < 2**64:
            raise InvalidParameter("seed", f"is {self.seed}; it must be from 0 to 2^64 - 1")
        if self.min_tokens < 0:
            raise InvalidParameter("min_tokens", f"is {self.min_tokens}; it must be 0 or more")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                "min_tokens", f"is {self.min_tokens}, above max_tokens ({self.max_tokens})"
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidParameter(
                "stop_token_ids",
                f"has {len(self.stop_token_ids)} entries; at most {MAX_STOP_TOKEN_IDS} are taken",
            )
