"""Limits on the size and shape of what clients send, and checks that need no tokenizer.

Each check raises `ApiError` naming the field. Units: bytes of UTF-8 for whole inputs,
characters for stop strings and names, tokens for contexts.
"""

import re
from collections.abc import Sequence

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from blockyard.cluster.request.api_error import ApiCode, ApiError

__all__ = [
    "MAX_BAD_WORD_STRINGS",
    "MAX_CHOICES",
    "MAX_MODEL_NAME_CHARACTERS",
    "MAX_STOPS",
    "MAX_STOP_CHARACTERS",
    "check_known_fields",
    "check_name",
    "check_role",
    "check_stops",
    "check_text_size",
    "invalid",
    "text_limit_bytes",
]

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_BAD_WORD_STRINGS = 64
MAX_MODEL_NAME_CHARACTERS = 256

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,32}")

_BYTES_FOR_A_CONTEXT_TOKEN = 32
_LEAST_TEXT_LIMIT_BYTES = 65_536


def invalid(field: str, message: str) -> ApiError:
    """The caller's mistake in `field`."""
    return ApiError(ApiCode.INVALID_ARGUMENT, field, message)


def text_limit_bytes(context_tokens: int) -> int:
    """Longest text worth tokenising: real text has 2 to 8 bytes for a token."""
    return max(_LEAST_TEXT_LIMIT_BYTES, _BYTES_FOR_A_CONTEXT_TOKEN * context_tokens)


def check_text_size(field: str, num_bytes: int, context_tokens: int) -> None:
    """Refuse a text that cannot fit, before time is spent on tokenising it."""
    limit = text_limit_bytes(context_tokens)
    if num_bytes > limit:
        raise invalid(
            field,
            f"has {num_bytes:,} bytes; with this model's context of {context_tokens:,} tokens at "
            f"most {limit:,} are taken",
        )


def check_name(field: str, name: str) -> None:
    """Refuse names that would not be safe in logs and labels; empty means none given."""
    if name and not _NAME.fullmatch(name):
        raise invalid(
            field,
            f"is {name[:40]!r} ({len(name)} characters); give 1 to 128 characters of letters, "
            "digits and . _ : -",
        )


def check_role(field: str, role: str) -> None:
    """Refuse roles that could write control tokens into the template."""
    if not _ROLE.fullmatch(role):
        raise invalid(
            field,
            f"is {role[:40]!r}; give a word of letters, such as `system`, `user` or `assistant`",
        )


def check_stops(stops: Sequence[str]) -> None:
    """Refuse too many stop strings, and empty or over-long ones."""
    if len(stops) > MAX_STOPS:
        raise invalid("sampling.stop", f"has {len(stops):,} strings; at most {MAX_STOPS} are taken")
    for index, stop in enumerate(stops):
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise invalid(
                f"sampling.stop[{index}]",
                f"has {len(stop):,} characters; it must have 1 to {MAX_STOP_CHARACTERS}",
            )


def check_known_fields(field: str, message: Message) -> None:
    """Refuse fields that a newer client sends and this server would have to ignore."""
    unknown = sorted({entry.field_number for entry in UnknownFieldSet(message)})
    if unknown:
        numbers = ", ".join(map(str, unknown[:8]))
        raise invalid(
            field,
            f"has fields that this server does not know (numbers {numbers}); "
            "leave them out or use a newer server",
        )
