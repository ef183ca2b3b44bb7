"""What a memory's figures mean for its owner: a few rules, each with its words.

Utilisation is the share of KV memory that holds tokens. The rules say what is worth doing, not how
much it brings: the planner's figures do that. Units: tokens; ratios from 0 to 1.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Verdict", "give_verdict"]

_WASTEFUL_UTILISATION = 0.5
_SHORT_P99 = 0.6
_RISKY_FRAGMENTATION = 0.2
_GOOD_UTILISATION = 0.75


class Finding(StrEnum):
    """What a rule found."""

    RESERVATION_WASTE = "reservation_waste"
    OUT_OF_MEMORY_RISK = "out_of_memory_risk"
    WELL_USED = "well_used"
    BLOCKS_PAY = "blocks_pay"
    STATIC_BATCHING = "static_batching"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rules that hold, and one paragraph to read."""

    findings: tuple[Finding, ...]
    text: str


def give_verdict(
    utilisation: float | None,
    p99_length: float | None,
    limit: int | None,
    external_fragmentation: float | None = None,
    gain: float | None = None,
    batch_useful_ratio: float | None = None,
) -> Verdict:
    """Judge a contiguous memory; None stands for what is not known.

    Args:
        utilisation: share of the KV memory that holds tokens.
        p99_length: only one request in a hundred is longer.
        limit: tokens that are reserved for a request.
        external_fragmentation: `1 - largest_free / total_free`.
        gain: how many times as many requests run with blocks.
        batch_useful_ratio: useful share of the work of static batches.
    """
    findings: list[Finding] = []
    sentences: list[str] = []
    if external_fragmentation is not None and external_fragmentation > _RISKY_FRAGMENTATION:
        findings.append(Finding.OUT_OF_MEMORY_RISK)
        sentences.append(
            f"out-of-memory risk: external fragmentation is {external_fragmentation:.0%}, so "
            "requests can be refused while memory is free; blocks need no contiguous memory."
        )
    if utilisation is not None:
        finding, sentence = _judge_use(utilisation, p99_length, limit, gain)
        findings.append(finding)
        sentences.append(sentence)
    if batch_useful_ratio is not None and batch_useful_ratio < _GOOD_UTILISATION:
        findings.append(Finding.STATIC_BATCHING)
        sentences.append(
            f"static batching: only {batch_useful_ratio:.0%} of its work is useful; continuous "
            "batching refills a place as soon as its request ends."
        )
    if not sentences:
        sentences.append("no waste that blocks would remove shows in these figures.")
    return Verdict(tuple(findings), " ".join(sentences))


def _judge_use(
    utilisation: float, p99_length: float | None, limit: int | None, gain: float | None
) -> tuple[Finding, str]:
    fold = "several-fold" if gain is None or gain < 2 else f"several-fold ({gain:.1f} times)"
    once = "" if gain is None else f" ({gain:.1f} times as many requests)"
    if utilisation >= _GOOD_UTILISATION:
        return Finding.WELL_USED, (
            f"well used: {utilisation:.0%} of the KV memory holds tokens, so blocks bring little "
            "more; look at batching and caching instead."
        )
    if utilisation >= _WASTEFUL_UTILISATION:
        return Finding.BLOCKS_PAY, (
            f"blocks pay, not several-fold: {utilisation:.0%} of the KV memory holds tokens{once}."
        )
    if p99_length is not None and limit is not None and p99_length >= _SHORT_P99 * limit:
        return Finding.BLOCKS_PAY, (
            f"blocks pay{once}: only {utilisation:.0%} of the KV memory holds tokens, though the "
            f"p99 length ({p99_length:,.0f}) comes near the limit ({limit:,}), so a lower limit "
            "would refuse requests."
        )
    short = (
        ""
        if p99_length is None or limit is None
        else f" and the p99 length ({p99_length:,.0f}) is under 60 % of the limit ({limit:,})"
    )
    return Finding.RESERVATION_WASTE, (
        f"reservation waste: only {utilisation:.0%} of the KV memory holds tokens{short}; "
        f"blocks pay {fold}."
    )
