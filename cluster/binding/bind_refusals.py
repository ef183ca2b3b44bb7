"""What clients are told whose requests get no group."""

from blockyard.scheduler.request import RefusalCode, RequestRefused

__all__ = ["name_in_use", "no_group", "too_late"]


def name_in_use() -> RequestRefused:
    """The name for a request is that of a live one."""
    return RequestRefused(
        RefusalCode.EXISTS,
        "a request of yours with this id is being served; choose another id or wait until it ends",
        "request_id",
    )


def no_group(model: str) -> RequestRefused:
    """The model has no group."""
    return RequestRefused(
        RefusalCode.UNAVAILABLE, f"no group serves {model} at the moment; try again shortly"
    )


def too_late() -> RequestRefused:
    """The deadline has passed on the way to a group."""
    return RequestRefused(
        RefusalCode.INVALID,
        "the deadline passed before any group could take the request; allow more time",
        "deadline_seconds",
    )
