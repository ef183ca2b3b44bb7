"""Which options of guessing go together. Reads no files."""

from blockyard.scheduler.config import Speculation
from blockyard.workers.description import ModelDescription

__all__ = ["check_speculation"]


def check_speculation(
    speculate: Speculation, draft: ModelDescription | None, draft_weights: str
) -> None:
    """Refuse options that do not go together.

    Raises:
        ValueError: a draft model is missing, or nothing would use it.
    """
    if speculate is Speculation.DRAFT and draft is None:
        raise ValueError("speculate is draft without a draft model; name one")
    if speculate is not Speculation.DRAFT and draft is not None:
        raise ValueError(
            f"draft model {draft.name} is given and speculate is {speculate}; say speculate draft"
        )
    if draft is None and draft_weights != "auto":
        raise ValueError(f"draft_weights is {draft_weights} without a draft model; name one")
