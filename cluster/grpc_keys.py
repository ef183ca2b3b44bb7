"""What the metadata of gRPC calls tells: API keys (`authorization: Bearer KEY`), and spans."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc

from blockyard.cluster.grpc_status import call_status
from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.api_keys import KeyRing
from blockyard.cluster.request.caller import Caller

__all__ = ["KeyCheck", "authorization_of", "caller_of", "traceparent_of"]

_OPEN = ("/grpc.health.v1.", "/grpc.reflection.")
"""Services that anybody may ask: balancers and tools have no key."""


def authorization_of(metadata: Iterable[Any] | None) -> str | None:
    """What a caller shows."""
    return _named("authorization", metadata)


def traceparent_of(metadata: Iterable[Any] | None) -> str:
    """The span that a call is made under; empty for none."""
    return _named("traceparent", metadata) or ""


def caller_of(context: Any, keys: KeyRing) -> Caller:
    """Who makes a call; that there is a key that lets it in was checked before."""
    metadata = context.invocation_metadata()
    key = keys.key_of(authorization_of(metadata))
    return Caller(
        key.tenant if key is not None else "",
        context.time_remaining(),
        traceparent_of(metadata),
        sees_all=key is not None and key.is_admin,
    )


def _named(wanted: str, metadata: Iterable[Any] | None) -> str | None:
    for name, value in metadata or ():
        if name == wanted:
            return value if isinstance(value, str) else None
    return None


class KeyCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Lets in who shows a key of `keys`."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """The method's own handler, or one that refuses in its place."""
        handler = await continuation(details)
        if handler is None or details.method.startswith(_OPEN):
            return handler
        try:
            self._keys.tenant_of(authorization_of(details.invocation_metadata))
        except ApiError as error:
            return _refusing(handler, error)
        return handler


def _refusing(handler: Any, error: ApiError) -> Any:
    """A handler of the same kind that ends each call with the error."""
    status = call_status(error)

    async def refuse(request: Any, context: Any) -> None:
        await context.abort(status.code, status.message, status.trailing_metadata)

    make = (
        grpc.unary_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.unary_unary_rpc_method_handler
    )
    return make(
        refuse,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
