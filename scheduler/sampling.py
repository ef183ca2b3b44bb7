"""How one request wants its tokens chosen, resolved and checked: data only, no sampling here.

Sampling is a pure function of (logits, these parameters, seed, choice, position) and of the tokens
so far, so this value plus those tokens is all that is needed to continue a request anywhere.
"""

from dataclasses import dataclass
from typing import NamedTuple

from blockyard.scheduler.sampling_limits import (
    InvalidParameter,
    check_bias,
    check_count,
    check_number,
)

__all__ = [
    "GREEDY_TEMPERATURE",
    "MAX_ALLOWED_TOKEN_IDS",
    "MAX_BAD_WORDS",
    "MAX_BAD_WORD_TOKENS",
    "MAX_BEAM_TOPS",
    "MAX_LOGIT_BIASES",
    "MAX_LOGPROBS",
    "MAX_STOP_TOKEN_IDS",
    "InvalidParameter",
    "SamplingParams",
    "TokenLogprobs",
]

GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature the most likely token is taken (dividing by less overflows fp32)."""

MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIASES = 1024
MAX_ALLOWED_TOKEN_IDS = 4096
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 32
MAX_LOGPROBS = 20
MAX_BEAM_TOPS = 64
"""Likeliest tokens that workers tell of one row of a search: its width and its stop tokens."""


class TokenLogprobs(NamedTuple):
    """What the model thought of one token, and of the likeliest ones in its place.

    Natural logarithms of the softmax of the model's own scores, before any parameter. `rank` is
    the token's place among all tokens, 1 for the likeliest. `top_ids` are the likeliest tokens,
    best first (of equals the lowest id first); `top_logprobs` are theirs.
    """

    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


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
        min_p: tokens less likely than this share of the likeliest one are left out, in [0, 1].
        typical_p: tokens whose surprise is closest to the expected one, as many as reach this
            probability, in (0, 1].
        frequency_penalty: taken off a token's score for each time it was produced, -2 to 2.
        presence_penalty: taken off the score of each token that was produced, -2 to 2.
        repetition_penalty: scores of tokens in prompt or output are divided by it where positive,
            multiplied where negative; above 0, at most 10.
        logit_bias: (token id, what is added to its score), -100 to 100.
        allowed_token_ids: the only tokens to choose from; empty means all.
        bad_words: token sequences whose last token is not chosen after the ones before it.
        logprobs: how many likeliest tokens to tell with each token's own log probability; None
            tells none.
        prompt_logprobs: the same for the tokens of the prompt.
        grammar: what the answer must keep to, as llguidance writes it; empty means anything.
        beam_width: answers that a search follows at once; 1 means that none is made.
        length_penalty: a search divides the log probability of an answer by its number of tokens
            to this power, -5 to 5.
        early_stopping: a search ends with the first `beam_width` answers that have ended, rather
            than when none that goes on seems to become better.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    choice: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""
    beam_width: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False

    @property
    def searches(self) -> bool:
        """Whether answers are searched for, not sampled."""
        return self.beam_width > 1

    @property
    def num_tops(self) -> int | None:
        """Likeliest tokens that workers tell with each one sampled; None when nobody wants any.

        Of a search those that may go on, whichever of the others end an answer.
        """
        if not self.searches:
            return self.logprobs
        return max(self.beam_width + len(self.stop_token_ids), self.logprobs or 0)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def penalised(self) -> bool:
        """Whether tokens that were there before are scored lower or higher."""
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    @property
    def reads_history(self) -> bool:
        """Whether workers need the tokens themselves, not only their KV."""
        return (
            self.penalised
            or bool(self.bad_words or self.grammar)
            or self.prompt_logprobs is not None
        )

    def __post_init__(self) -> None:
        """Refuse values outside their range, naming the field."""
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidParameter("max_tokens", f"is {self.max_tokens}; it must be at least 1")
        check_number("temperature", self.temperature, 0.0, 100.0)
        check_number("top_p", self.top_p, 0.0, 1.0, above=True)
        check_number("min_p", self.min_p, 0.0, 1.0)
        check_number("typical_p", self.typical_p, 0.0, 1.0, above=True)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("repetition_penalty", self.repetition_penalty, 0.0, 10.0, above=True)
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
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, name)
            if wanted is not None and not 0 <= wanted <= MAX_LOGPROBS:
                raise InvalidParameter(name, f"is {wanted}; it must be from 0 to {MAX_LOGPROBS}")
        check_count("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)
        check_number("length_penalty", self.length_penalty, -5.0, 5.0)
        if not 1 <= self.beam_width <= MAX_BEAM_TOPS - len(self.stop_token_ids):
            raise InvalidParameter(
                "beam_width",
                f"is {self.beam_width}, with {len(self.stop_token_ids)} stop tokens; it must be "
                f"at least 1, and at most {MAX_BEAM_TOPS} with them",
            )
        check_count("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
        check_bias(self.logit_bias, MAX_LOGIT_BIASES)
        check_count("bad_words", self.bad_words, MAX_BAD_WORDS)
        for index, word in enumerate(self.bad_words):
            if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
                raise InvalidParameter(
                    f"bad_words[{index}]",
                    f"has {len(word)} tokens; it must have 1 to {MAX_BAD_WORD_TOKENS}",
                )
