"""Bytes that are no message of the expected kind, kept as a value until a method refuses them.

gRPC reports a deserialiser that raises as the server's failure; ours returns this instead, so that
the caller learns that the mistake is theirs. It crosses processes, so it is plain data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from blockyard.cluster.request.api_error import ApiCode, ApiError

__all__ = ["MalformedMessage", "tolerant_parser", "well_formed"]

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class MalformedMessage:
    """Stands for bytes that could not be parsed; `expected` is the message's full name."""

    expected: str


def tolerant_parser(message_type: Any) -> Callable[[bytes], Any]:
    """A deserialiser for a generated message class that never raises."""

    def parse(data: bytes) -> Any:
        try:
            return message_type.FromString(data)
        except DecodeError:
            return MalformedMessage(message_type.DESCRIPTOR.full_name)

    return parse


def well_formed(request: M | MalformedMessage) -> M:
    """A request that is a message.

    Raises:
        ApiError: INVALID_ARGUMENT.
    """
    if isinstance(request, MalformedMessage):
        raise ApiError(
            ApiCode.INVALID_ARGUMENT, "request", f"not a valid {request.expected} message"
        )
    return request
