"""`ApiError` as a gRPC status with `google.rpc` details, for either kind of server context.

Details carry the field (BadRequest), the code and incident (ErrorInfo) and when to try again
(RetryInfo) for programs; people read the status message.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from blockyard.cluster.request.api_error import ApiError

__all__ = [
    "ERROR_DOMAIN",
    "CallStatus",
    "ServeContext",
    "SettableContext",
    "call_status",
    "set_status",
]

ERROR_DOMAIN = "blockyard"
"""`domain` of every ErrorInfo."""


@dataclass(frozen=True, slots=True)
class CallStatus:
    """How a call ends. `trailing_metadata` holds the details in gRPC's standard form."""

    code: grpc.StatusCode
    message: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


class SettableContext(Protocol):
    """What Ray Serve's gRPC context and a plain servicer's context have in common."""

    def set_code(self, code: Any) -> None:
        """Set the status code to end with."""
        ...

    def set_details(self, details: str) -> None:
        """Set the status message to end with."""
        ...

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Set the metadata to end with."""
        ...


class ServeContext(SettableContext, Protocol):
    """Ray Serve's gRPC context, as far as methods behind its proxy use it."""

    def invocation_metadata(self) -> list[tuple[str, Any]]:
        """What the client sent beside its message."""
        ...


def call_status(error: ApiError) -> CallStatus:
    """The status of a failed call."""
    code = grpc.StatusCode[error.code.value]
    status = status_pb2.Status(code=code.value[0], message=error.text)
    info = error_details_pb2.ErrorInfo(reason=error.code.value, domain=ERROR_DOMAIN)
    if error.field:
        info.metadata["field"] = error.field
        _attach(
            status,
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(
                        field=error.field, description=error.message
                    )
                ]
            ),
        )
    if error.incident:
        info.metadata["incident"] = error.incident
    _attach(status, info)
    if error.retry_after_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after_seconds * 1e9))
        _attach(status, retry)
    metadata = rpc_status.to_status(status).trailing_metadata
    return CallStatus(code, error.text, tuple((key, value) for key, value in metadata))


def set_status(context: SettableContext, error: ApiError) -> None:
    """Tell a context that has no `abort` (Ray Serve's) how the call ends; then raise `error`."""
    status = call_status(error)
    context.set_code(status.code)
    context.set_details(status.message)
    context.set_trailing_metadata(list(status.trailing_metadata))


def _attach(status: Any, detail: Any) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)
