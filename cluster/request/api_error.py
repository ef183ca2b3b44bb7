"""The one exception that the request path shows to clients, whatever the transport.

Codes are named like gRPC's, but this module knows neither gRPC nor HTTP: adapters map them.
Messages say what happened, the value, and what to do; never a path or an address of the server.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from blockyard.scheduler.request import RefusalCode, RequestRefused
from blockyard.scheduler.sampling import InvalidParameter

__all__ = ["RETRY_AFTER_SECONDS", "ApiCode", "ApiError", "from_invalid_parameter", "from_refusal"]

RETRY_AFTER_SECONDS = 1.0
"""When a client that was refused for load or for a missing group may try again."""


class ApiCode(StrEnum):
    """Whose problem it is, in gRPC's words."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    ABORTED = "ABORTED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INTERNAL = "INTERNAL"


class ApiError(Exception):
    """A request failed.

    Attributes:
        code: whose problem it is.
        field: public name of the caller's field at fault, such as `sampling.top_p`; empty if none.
        message: for the client, without the field's name.
        retry_after_seconds: when trying again makes sense; None when it does not.
        incident: an id that the server's log shares; empty unless the server is at fault.
    """

    def __init__(
        self,
        code: ApiCode,
        field: str,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        incident: str = "",
    ) -> None:
        super().__init__(code, field, message)
        self.code = code
        self.field = field
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.incident = incident

    def at(self, field: str) -> Self:
        """The same failure with the field called otherwise."""
        return type(self)(
            self.code,
            field,
            self.message,
            retry_after_seconds=self.retry_after_seconds,
            incident=self.incident,
        )

    @property
    def text(self) -> str:
        """The field and what is wrong with it, in one line."""
        return f"{self.field}: {self.message}" if self.field else self.message

    def __str__(self) -> str:
        """The code and the text."""
        return f"{self.code}: {self.text}"


_NO_NAMES: Mapping[str, str] = MappingProxyType({})

_REFUSAL_CODES = {
    RefusalCode.INVALID: ApiCode.INVALID_ARGUMENT,
    RefusalCode.EXISTS: ApiCode.ALREADY_EXISTS,
    RefusalCode.EXHAUSTED: ApiCode.RESOURCE_EXHAUSTED,
    RefusalCode.UNAVAILABLE: ApiCode.UNAVAILABLE,
}


def from_refusal(refusal: RequestRefused, fields: Mapping[str, str] = _NO_NAMES) -> ApiError:
    """What a scheduler or a dispatcher refused, for the client.

    `fields` gives the client's names for fields that the scheduler calls otherwise. A deadline is
    no field of a message: one that cannot be met has as good as passed.
    """
    if refusal.code is RefusalCode.INVALID and refusal.field == "deadline_seconds":
        return ApiError(ApiCode.DEADLINE_EXCEEDED, "", refusal.message)
    passes = refusal.code in (RefusalCode.EXHAUSTED, RefusalCode.UNAVAILABLE)
    return ApiError(
        _REFUSAL_CODES[refusal.code],
        fields.get(refusal.field, refusal.field),
        refusal.message,
        retry_after_seconds=RETRY_AFTER_SECONDS if passes else None,
    )


def from_invalid_parameter(error: InvalidParameter, parent: str) -> ApiError:
    """A sampling parameter out of range; `parent` is the message that holds the field."""
    return ApiError(ApiCode.INVALID_ARGUMENT, f"{parent}.{error.field}", error.message)
