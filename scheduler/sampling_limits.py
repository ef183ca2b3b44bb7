"""Checks of single sampling parameters; each refusal names the field and says the range."""

import math
from collections.abc import Sequence

__all__ = ["InvalidParameter", "check_bias", "check_count", "check_number"]

_MOST_BIAS = 100.0


class InvalidParameter(ValueError):
    """A caller's parameter is out of range; `field` is its public name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def check_number(
    field: str, value: float, least: float, most: float, *, above: bool = False
) -> None:
    """Refuse what is not a number from `least` (or, with `above`, above it) to `most`."""
    if math.isfinite(value) and least <= value <= most and not (above and value == least):
        return
    span = (
        f"above {least:g} and at most {most:g}" if above else f"a number from {least:g} to {most:g}"
    )
    raise InvalidParameter(field, f"is {value}; it must be {span}")


def check_count(field: str, values: Sequence[object], most: int) -> None:
    """Refuse more than `most` entries."""
    if len(values) > most:
        raise InvalidParameter(field, f"has {len(values):,} entries; at most {most:,} are taken")


def check_bias(biases: Sequence[tuple[int, float]], most: int) -> None:
    """Refuse too many biases, too large ones, and two for one token."""
    check_count("logit_bias", biases, most)
    if len({token for token, _ in biases}) < len(biases):
        raise InvalidParameter("logit_bias", "names a token twice")
    for token, bias in biases:
        if not math.isfinite(bias) or abs(bias) > _MOST_BIAS:
            raise InvalidParameter(
                f"logit_bias[{token}]",
                f"is {bias}; it must be a number from {-_MOST_BIAS:g} to {_MOST_BIAS:g}",
            )
