"""Traffic made up for a replay: as many requests as wanted, in memory of fixed size.

Arrivals as chance has them at a steady rate, log-normal lengths with the spread of recorded chat
traffic. The same seed gives the same traffic. Units: seconds, tokens.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from blockyard.scheduler.simulated.arrivals import Arrival
from blockyard.scheduler.simulated.simulation import log_normal_requests

__all__ = ["SyntheticTraffic", "parse_synthetic"]


@dataclass(frozen=True, slots=True)
class SyntheticTraffic:
    """What is to be made up.

    Attributes:
        requests: how many.
        rate: a second, on average.
        prompt, output: mean lengths.
        longest: where either length is cut.
        seed: of all that is drawn.
    """

    requests: int
    rate: float
    prompt: int = 512
    output: int = 128
    longest: int = 4096
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse traffic that never comes."""
        for name in ("requests", "rate", "prompt", "output", "longest"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} in synthetic traffic: above 0")

    @property
    def most_tokens(self) -> int:
        """Prompt and answer of the longest request that can come."""
        return 2 * self.longest

    def arrivals(self) -> Iterator[Arrival]:
        """The requests, in order of time."""
        rng = random.Random(self.seed)
        shapes = log_normal_requests(self.seed, self.prompt, self.output, self.longest)
        now = 0.0
        for number in range(self.requests):
            now += rng.expovariate(self.rate)
            shape = next(shapes)
            yield Arrival(number, now, shape.prompt_tokens, shape.output_tokens)


def parse_synthetic(text: str) -> SyntheticTraffic:
    """Traffic from words like `requests=1000,rate=20,prompt=512,output=128`.

    Raises:
        ValueError: a word is unknown or no number, or requests and rate are not both given.
    """
    kinds: Mapping[str, type] = {
        field.name: float if field.name == "rate" else int for field in fields(SyntheticTraffic)
    }
    values: dict[str, Any] = {}
    for word in text.split(","):
        name, _, number = word.strip().partition("=")
        try:
            values[name] = kinds[name](float(number))
        except (KeyError, ValueError, OverflowError):
            raise ValueError(
                f"synthetic traffic has no {word!r}; give numbers for {', '.join(kinds)}"
            ) from None
    if "requests" not in values or "rate" not in values:
        raise ValueError("synthetic traffic needs at least requests=N,rate=REQUESTS_A_SECOND")
    return SyntheticTraffic(**values)
