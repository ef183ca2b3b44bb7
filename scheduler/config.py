"""Limits of one scheduler. Made once at the edge, checked here, never changed afterwards.

Knows nothing of devices: how many blocks the pool has is measured elsewhere and passed beside it.
"""

from dataclasses import dataclass
from enum import StrEnum

from blockyard.scheduler.block_keys import MAX_TOKEN_ID

__all__ = ["DEFAULT_BLOCK_SIZE", "PreemptionPolicy", "SchedulerConfig", "Speculation"]

DEFAULT_BLOCK_SIZE = 16


class PreemptionPolicy(StrEnum):
    """What becomes of the blocks of a request that loses its place.

    `swap` saves all of them on the host, while there is room; `recompute` drops them; `auto` takes
    as many as are needed, the cheaper way at the rates measured.
    """

    AUTO = "auto"
    SWAP = "swap"
    RECOMPUTE = "recompute"


class Speculation(StrEnum):
    """Where guesses of next tokens come from.

    Nowhere, from what stood in the request before, or from a smaller model beside the one served.
    """

    OFF = "off"
    NGRAM = "ngram"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one scheduler.

    Attributes:
        block_size: token slots in a block.
        max_context_tokens: longest prompt plus completion, from the model.
        max_running: most requests that take part in one step.
        max_step_tokens: most tokens computed in one step, prefill and decode together.
        max_waiting: most requests that may queue before newcomers are refused.
        preemption: what becomes of a preempted request's blocks.
        vocab_size: token ids are below it; what a model does not know would bring its workers down.
        pipeline_depth: steps that may be in flight at once. With 2 a step is planned while the one
            before it runs, so the device never waits for a plan; who comes after that waits a step
            longer, so whoever drives it had best plan late.
        speculate: whether steps check guesses of next tokens, and whose; answers stay the same.
        weight_version: of the model's weights: blocks that others have computed are not found.
    """

    max_context_tokens: int
    block_size: int = DEFAULT_BLOCK_SIZE
    max_running: int = 256
    max_step_tokens: int = 512
    max_waiting: int = 4096
    preemption: PreemptionPolicy = PreemptionPolicy.AUTO
    vocab_size: int = MAX_TOKEN_ID + 1
    pipeline_depth: int = 1
    speculate: Speculation = Speculation.OFF
    weight_version: str = ""

    @property
    def told_weights(self) -> tuple[str, ...]:
        """As updates tell of the weights that made their tokens."""
        return (self.weight_version,) if self.weight_version else ()

    def __post_init__(self) -> None:
        """Refuse limits that could never make progress."""
        for name in (
            "max_context_tokens",
            "block_size",
            "max_running",
            "max_step_tokens",
            "max_waiting",
            "vocab_size",
        ):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if self.pipeline_depth not in (1, 2):
            raise ValueError(
                f"pipeline_depth is {self.pipeline_depth}; a plan knows of one step in flight "
                "before it at most, so use 1 or 2"
            )
        if self.speculate is not Speculation.OFF and self.pipeline_depth > 1:
            raise ValueError(
                f"speculate is {self.speculate} with pipeline_depth {self.pipeline_depth}; where a "
                "row goes on depends on guesses that a step in flight checks, so use a depth of 1"
            )
        if self.max_step_tokens <= self.max_running:
            raise ValueError(
                f"max_step_tokens ({self.max_step_tokens}) must exceed max_running "
                f"({self.max_running}), or a full batch of decodes would leave no room for "
                "prefill; raise the first or lower the second"
            )
