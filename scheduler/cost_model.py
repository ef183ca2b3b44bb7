"""What a preemption costs in seconds, by swap and by recompute, at rates measured while running.

`CostModel` is frozen arithmetic; `RateMeter` learns its rates from finished steps. Neither knows
requests, tables or clocks: seconds come in with the results of steps. Where ranks differ, bytes
are those of the rank with the largest blocks: ranks copy side by side and the slowest counts.
Units: seconds, tokens, blocks, bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CostModel", "RateMeter"]

_PREFILL_WINDOW_TOKENS = 32_768
"""About how many prefilled tokens back the prefill rate remembers."""

_LINK_WINDOW_BLOCKS = 512
"""About how many moved blocks back the link's rate remembers."""

_FEWEST_PREFILL_TOKENS = 32
"""A step with fewer prefill tokens tells nothing of prefill: its time is that of its decodes."""

_LARGEST_JUMP = 4.0
"""One observation counts as at most this many times faster or slower than what is known."""

_LARGEST_DECODE_SHARE = 0.75
"""At most this part of a mixed step is taken to be its decodes' time."""

_STEPS_REMEMBERED = 32

_KEPT_A_STEP = 0.999
"""Without a copy, what is known of the link fades by half in about 700 steps."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Rates at one moment. A rate of 0 is not measured: what it would price costs infinity.

    Attributes:
        block_bytes: bytes of one block on one rank.
        prefill_tokens_per_second: tokens that a step computes more in each second it lasts longer.
        link_bytes_per_second: device to host and back.
        step_seconds: length of a usual step.
    """

    block_bytes: int
    prefill_tokens_per_second: float
    link_bytes_per_second: float
    step_seconds: float = 0.0

    def swap_seconds(self, num_blocks: int, blocks_before: int = 0) -> float:
        """Seconds that steps last longer when `num_blocks` blocks go out and later come back.

        Copies out are issued beside the step that runs and hide behind it up to its length;
        `blocks_before` are blocks that the same step saves already, which use up that cover. A
        copy back must end before the first token that reads it, so it is paid in full.
        """
        if not num_blocks:
            return 0.0
        if not self.link_bytes_per_second:
            return math.inf
        block_seconds = self.block_bytes / self.link_bytes_per_second
        before = blocks_before * block_seconds
        out = num_blocks * block_seconds
        hidden = min(out, max(0.0, self.step_seconds - before))
        return out - hidden + out

    def recompute_seconds(self, num_tokens: int) -> float:
        """Seconds that steps last longer when `num_tokens` tokens are computed again."""
        if not num_tokens:
            return 0.0
        if not self.prefill_tokens_per_second:
            return math.inf
        return num_tokens / self.prefill_tokens_per_second


class _Rate:
    """Amount over seconds, weighted by amount, over about the last `window`.

    What was measured beforehand stands in for what is missing of a quarter of the window.
    """

    def __init__(self, start: float, window: float) -> None:
        self._start = start
        self._window = window
        self._amount = 0.0
        self._seconds = 0.0

    @property
    def value(self) -> float:
        """Amount in a second; 0 while nothing is known."""
        missing = max(0.0, self._window / 4 - self._amount) if self._start > 0 else 0.0
        if not missing:
            return self._amount / self._seconds if self._seconds else 0.0
        return (self._amount + missing) / (self._seconds + missing / self._start)

    def rest(self, steps: int = 1) -> None:
        """Steps have passed: what was observed counts a little less, if there is anything else.

        Else a rate that was bad once would stay so for ever, because nobody would try it again.
        """
        if self._start > 0 and self._amount:
            for _ in range(steps):
                self._amount *= _KEPT_A_STEP
                self._seconds *= _KEPT_A_STEP

    def observe(self, amount: float, seconds: float) -> None:
        """Add one measurement; a wild one is drawn in, so that one hiccup moves little."""
        known = self.value
        if known:
            usual = amount / known
            seconds = min(max(seconds, usual / _LARGEST_JUMP), usual * _LARGEST_JUMP)
        # One huge measurement must not outweigh everything before it either.
        share = min(1.0, self._window / 8 / amount)
        self._amount += amount * share
        self._seconds += seconds * share
        if self._amount > self._window:
            fade = self._window / self._amount
            self._amount *= fade
            self._seconds *= fade


class RateMeter:
    """Learns both rates and the usual length of a step. Starts from what was measured at load.

    The same observations in the same order give the same rates. One that makes no sense (no time,
    no tokens, not finite) is ignored: a clock that stood still must not become an endless rate.
    """

    def __init__(
        self,
        block_bytes: int,
        prefill_tokens_per_second: float = 0.0,
        link_bytes_per_second: float = 0.0,
    ) -> None:
        self._block_bytes = block_bytes
        self._prefill = _Rate(prefill_tokens_per_second, _PREFILL_WINDOW_TOKENS)
        self._link = _Rate(link_bytes_per_second, max(1, block_bytes) * _LINK_WINDOW_BLOCKS)
        self._step_seconds = 0.0
        self._decode_seconds = 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """As it is known now; 0: not at all."""
        return self._prefill.value

    def observe_step(self, prefill_tokens: int, decode_tokens: int, seconds: float) -> None:
        """A step has computed these tokens in `seconds`, copies left out.

        Steps of decodes alone teach what decodes cost; from a step of both that much is taken off
        before the rest is laid to its prefill.
        """
        if prefill_tokens + decode_tokens < 1 or not _is_time(seconds):
            return
        self._link.rest()
        self._step_seconds = _moved(self._step_seconds, seconds)
        if not prefill_tokens:
            self._decode_seconds = _moved(self._decode_seconds, seconds)
        elif prefill_tokens >= _FEWEST_PREFILL_TOKENS:
            decode = self._decode_seconds if decode_tokens else 0.0
            decode = min(decode, seconds * _LARGEST_DECODE_SHARE)
            self._prefill.observe(prefill_tokens, seconds - decode)

    def observe_decodes(self, seconds: Sequence[float]) -> None:
        """Steps of decodes alone have taken so long: as many calls of `observe_step`, cheaper."""
        step, decode, observed = self._step_seconds, self._decode_seconds, 0
        for length in seconds:
            if _is_time(length):
                step, decode = _moved(step, length), _moved(decode, length)
                observed += 1
        self._link.rest(observed)
        self._step_seconds, self._decode_seconds = step, decode

    def observe_copy(self, num_blocks: int, seconds: float) -> None:
        """A step has moved `num_blocks` blocks over the link, either way, in `seconds`."""
        if num_blocks > 0 and self._block_bytes > 0 and _is_time(seconds):
            self._link.observe(num_blocks * self._block_bytes, seconds)

    def model(self) -> CostModel:
        """The rates as they are known now."""
        return CostModel(
            self._block_bytes, self._prefill.value, self._link.value, self._step_seconds
        )


def _is_time(seconds: float) -> bool:
    return 0.0 < seconds < math.inf


def _moved(mean: float, seconds: float) -> float:
    """A running mean after one more measurement, wild ones drawn in."""
    if not mean:
        return seconds
    # Compared one by one: this is on the path of every step, and calls would take longer.
    if seconds > mean * _LARGEST_JUMP:
        seconds = mean * _LARGEST_JUMP
    elif seconds < mean / _LARGEST_JUMP:
        seconds = mean / _LARGEST_JUMP
    return mean + (seconds - mean) / _STEPS_REMEMBERED
