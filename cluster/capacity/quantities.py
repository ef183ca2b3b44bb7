"""Amounts of memory and lists of numbers as people write them on a command line.

Units: bytes out; text in.
"""

import re

__all__ = ["format_bytes", "parse_bytes", "parse_counts"]

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
_AMOUNT = re.compile(r"\s*([0-9][0-9_]*\.?[0-9]*(?:e[+]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Read `80GiB`, `40 GB`, `300MB`, `50e9` or `13421772800`.

    Raises:
        ValueError: not an amount, or a unit that leaves open whether it counts by 1000 or 1024.
    """
    match = _AMOUNT.fullmatch(text)
    unit: int | None = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(
            f"{text!r} is not an amount of memory; write 80GiB (1024 x 1024 x 1024), 80GB "
            "(1000 x 1000 x 1000), or a number of bytes such as 50e9"
        )
    try:
        amount: int = round(float(match[1].replace("_", "")) * unit)
    except OverflowError:
        raise ValueError(f"{text!r} is more memory than there is") from None
    return amount


def parse_counts(text: str) -> list[int]:
    """Read `10,50,100,200`.

    Raises:
        ValueError: not whole numbers with commas between them.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is no list of whole numbers such as 10,50,100,200") from None


def format_bytes(amount: float) -> str:
    """An amount for people, in the decimal units of data sheets: `53.7 GB`."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(amount) >= unit:
            return f"{amount / unit:,.1f} {name}"
    return f"{amount:,.0f} B"
