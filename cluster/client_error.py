"""A failed call as a client is told of it: the status, the server's words, the field at fault."""

from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

__all__ = ["ServerError", "server_error"]

_DETAILS_KEY = "grpc-status-details-bin"


class ServerError(Exception):
    """A call failed.

    Attributes:
        code: gRPC's name of the status, such as `INVALID_ARGUMENT`.
        message: the server's words.
        field: the request's field at fault, or empty.
        reached: whether a Blockyard server answered at all.
    """

    def __init__(self, code: str, message: str, field: str, reached: bool) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.field = field
        self.reached = reached


def server_error(error: Any) -> ServerError:
    """What an `RpcError` says."""
    code = error.code()
    trailing = error.trailing_metadata() or ()
    details = next((value for key, value in trailing if key == _DETAILS_KEY), None)
    name = code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
    # Whoever fails to connect is told so by the library on this side, without server metadata.
    reached = details is not None or code is not grpc.StatusCode.UNAVAILABLE
    return ServerError(name, error.details() or name, _field_of(details), reached)


def _field_of(details: bytes | None) -> str:
    status = status_pb2.Status()
    if details is None:
        return ""
    try:
        status.ParseFromString(details)
    except DecodeError:
        return ""
    bad_request = error_details_pb2.BadRequest()
    for detail in status.details:
        if detail.Unpack(bad_request) and bad_request.field_violations:
            return str(bad_request.field_violations[0].field)
    return ""
