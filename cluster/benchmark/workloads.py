"""Requests for measuring a server end to end: the same ones for every server, from fixed seeds.

Greedy, of fixed output length, in a closed loop: a new request goes in as one ends. Prompts are
random token ids, so that no tokenizer is needed. Units: tokens.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["WORKLOADS", "Workload", "WorkloadRequest", "make_workload"]

_FIRST_PLAIN_TOKEN = 32
"""Ids below it may be special in the default model."""


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One prompt, and how many tokens are to come back."""

    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked, how much of it at the same time, and how often in one pass."""

    name: str
    concurrency: int
    repeats: int
    requests: tuple[WorkloadRequest, ...]

    @property
    def output_tokens(self) -> int:
        """Tokens that come back in one repeat."""
        return sum(request.max_tokens for request in self.requests)

    def shifted(self, number: int, vocab_size: int) -> "Workload":
        """The same work with another first token in every prompt: nothing that an earlier pass
        left in a prefix cache is found, what requests share among themselves still is."""
        span = vocab_size - _FIRST_PLAIN_TOKEN

        def shift(token: int) -> int:
            return _FIRST_PLAIN_TOKEN + (token - _FIRST_PLAIN_TOKEN + 1009 * number) % span

        return Workload(
            self.name,
            self.concurrency,
            self.repeats,
            tuple(
                WorkloadRequest((shift(request.prompt[0]), *request.prompt[1:]), request.max_tokens)
                for request in self.requests
            ),
        )


def _tokens(draw: random.Random, count: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(draw.randrange(_FIRST_PLAIN_TOKEN, vocab_size) for _ in range(count))


def _length(draw: random.Random, mean: float, sigma: float, least: int, most: int) -> int:
    """Lognormal of this mean before the limits; drawn again outside them."""
    while True:
        value = round(draw.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))
        if least <= value <= most:
            return value


def _chat(vocab_size: int) -> tuple[WorkloadRequest, ...]:
    """64 requests: prompts of 16 to 512 (mean 150), outputs of 16 to 256 (mean 91)."""
    draw = random.Random(20261)
    requests = []
    for _ in range(64):
        prompt = _length(draw, 165, 0.85, 16, 512)
        output = _length(draw, 142, 0.80, 16, 256)
        requests.append(WorkloadRequest(_tokens(draw, prompt, vocab_size), output))
    return tuple(requests)


def _alone(seed: int, prompt: int, output: int) -> Callable[[int], tuple[WorkloadRequest, ...]]:
    def make(vocab_size: int) -> tuple[WorkloadRequest, ...]:
        tokens = _tokens(random.Random(seed), prompt, vocab_size)
        return (WorkloadRequest(tokens, output),)

    return make


def _prefixed(vocab_size: int) -> tuple[WorkloadRequest, ...]:
    """32 requests with 512 tokens in common and 32 of their own."""
    draw = random.Random(20263)
    shared = _tokens(draw, 512, vocab_size)
    return tuple(WorkloadRequest(shared + _tokens(draw, 32, vocab_size), 64) for _ in range(32))


def _smoke(vocab_size: int) -> tuple[WorkloadRequest, ...]:
    """Four small ones, to see whether something runs."""
    draw = random.Random(20265)
    return tuple(
        WorkloadRequest(_tokens(draw, 8 + 7 * number, vocab_size), 8 + number)
        for number in range(4)
    )


_MAKERS: dict[str, tuple[int, int, Callable[[int], tuple[WorkloadRequest, ...]]]] = {
    "w1_c16": (16, 1, _chat),
    "w1_c32": (32, 1, _chat),
    "w2": (1, 3, _alone(20262, 128, 128)),
    "w3": (16, 1, _prefixed),
    "w4": (1, 3, _alone(20264, 2048, 1)),
    "smoke": (4, 1, _smoke),
}

WORKLOADS = tuple(_MAKERS)
"""Chat at 16 and at 32 in flight, one stream, a shared prefix, one long prompt, a smoke test."""


def make_workload(name: str, vocab_size: int = 49152) -> Workload:
    """A workload by name.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in _MAKERS:
        raise ValueError(f"workload is {name!r}; known are {', '.join(WORKLOADS)}")
    concurrency, repeats, make = _MAKERS[name]
    return Workload(name, concurrency, repeats, make(vocab_size))
