"""How long requests are: constant, log-normal from a mean and a p99, or measured on a trace.

A length is all tokens a request holds at its end, prompt and answer. Knows nothing of files.
Units: tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lengths", "constant_lengths", "fitted_lengths", "measured_lengths"]

_GRID = 20_000
_CUTS = 4  # rounds of cutting at the limit and restoring the mean
_Z99 = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Lengths of requests as equally likely samples.

    Attributes:
        samples: float64, ascending, one entry a request (or a quantile of the distribution).
        mean: their mean; kept beside them so that a stated mean stays exact.
        p99: only one request in a hundred is longer.
        assumption: in words, where the figures come from.
        stated: mean and p99 were told, not computed from samples.
    """

    samples: NDArray[np.float64]
    mean: float
    p99: float
    assumption: str
    stated: bool

    def mean_blocks(self, block_size: int, shared_tokens: int = 0) -> float:
        """Blocks a request needs on average, beyond `shared_tokens` that others hold already."""
        return float(self._blocks(block_size, shared_tokens).mean())

    def deviation_of_blocks(self, block_size: int, shared_tokens: int = 0) -> float:
        """Standard deviation of the blocks of one request."""
        return float(self._blocks(block_size, shared_tokens).std())

    def share_over(self, limit: int) -> float:
        """Share of requests longer than `limit`."""
        above = len(self.samples) - int(np.searchsorted(self.samples, limit, side="right"))
        return above / len(self.samples)

    def within(self, limit: int) -> "Lengths":
        """These lengths on a server that takes no request longer than `limit`.

        Measured requests that are longer are left out. A stated mean and p99 stay as stated: the
        operator has seen them, limit and all; only the fitted tail beyond the limit is cut.

        Raises:
            ValueError: not one request is that short.
        """
        share = self.share_over(limit)
        if not share:
            return self
        if share == 1 or (self.stated and self.mean >= limit):
            raise ValueError(
                f"lengths (mean {self.mean:,.0f}) are over the limit of {limit:,} tokens; raise "
                "--max-seq-len, or give lengths of requests that the server takes"
            )
        if self.stated:
            samples = self.samples
            for _ in range(_CUTS):
                samples = np.minimum(samples, limit)
                samples = samples * (self.mean / samples.mean())
            return replace(self, samples=samples)
        kept = self.samples[self.samples <= limit]
        return replace(
            self,
            samples=kept,
            mean=float(kept.mean()),
            p99=float(np.quantile(kept, 0.99)),
            assumption=f"{self.assumption}; {len(self.samples) - len(kept):,} of them are over the "
            "limit and left out",
        )

    def _blocks(self, block_size: int, shared_tokens: int) -> NDArray[np.float64]:
        own = np.maximum(self.samples - shared_tokens, 1)
        return np.asarray(np.ceil(own / block_size), dtype=np.float64)


def constant_lengths(length: float) -> Lengths:
    """Every request is as long as the mean."""
    if length < 1:
        raise ValueError(f"the mean length is {length:g}; it must be at least 1 token")
    return Lengths(
        np.array([length], dtype=np.float64),
        length,
        length,
        f"every request is {length:g} tokens long (give p99=... or a trace for a spread)",
        stated=True,
    )


def fitted_lengths(mean: float, p99: float) -> Lengths:
    """The log-normal distribution with this mean and this 99th percentile.

    Raises:
        ValueError: no log-normal distribution has the two.
    """
    if p99 < mean:
        raise ValueError(f"the p99 length {p99:g} is below the mean {mean:g}; give the true ones")
    if p99 == mean:
        return constant_lengths(mean)
    if mean < 1:
        raise ValueError(f"the mean length is {mean:g}; it must be at least 1 token")
    # ln(p99 / mean) = z * sigma - sigma^2 / 2; the smaller root is the narrower distribution.
    under_root = _Z99**2 - 2 * math.log(p99 / mean)
    if under_root < 0:
        raise ValueError(
            f"p99 {p99:g} is {p99 / mean:.1f} times the mean {mean:g}; a log-normal distribution "
            f"reaches at most {math.exp(_Z99**2 / 2):.1f} times. Give a trace instead"
        )
    sigma = _Z99 - math.sqrt(under_root)
    location = math.log(mean) - sigma**2 / 2
    normal = NormalDist(location, sigma)
    shares = (np.arange(_GRID) + 0.5) / _GRID
    samples = np.exp(np.array([normal.inv_cdf(share) for share in shares]))
    samples *= mean / samples.mean()  # the grid cuts the far tail off
    return Lengths(
        samples,
        mean,
        p99,
        f"log-normal lengths with mean {mean:g} and p99 {p99:g} (sigma {sigma:.2f})",
        stated=True,
    )


def measured_lengths(lengths: Sequence[int], source: str) -> Lengths:
    """Lengths as they were recorded; `source` names the recording.

    Raises:
        ValueError: nothing was recorded.
    """
    if not lengths:
        raise ValueError(f"{source} holds no requests")
    samples = np.sort(np.asarray(lengths, dtype=np.float64))
    return Lengths(
        samples,
        float(samples.mean()),
        float(np.quantile(samples, 0.99)),
        f"{len(samples):,} requests of {source}, each at its final length",
        stated=False,
    )
