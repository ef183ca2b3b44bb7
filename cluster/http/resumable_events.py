"""Server-sent events that are read on after a cut: each has an id, and `Last-Event-ID` resumes.

Who was cut off sends the same request again with that header. Knows no route. Units: seconds,
bytes.
"""

import re
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.requests import Request

from blockyard.cluster.http.exchange import Events
from blockyard.cluster.http.json_fields import JsonFields
from blockyard.cluster.http.key_gate import caller_of
from blockyard.cluster.request.limits import check_name, invalid
from blockyard.cluster.request.resumable import ResumableStreams, check_grace
from blockyard.protos import generation_pb2 as pb

__all__ = ["ResumableEvents", "read_resume_seconds"]

_EVENT_ID = re.compile(r"([A-Za-z0-9._:-]{1,128}):([0-9]{1,9})")
_HEADER = "last-event-id"


def read_resume_seconds(fields: JsonFields, message: pb.GenerateRequest, stream: bool) -> None:
    """Move `resume_seconds` to the message. Raises `ApiError`."""
    seconds = fields.number("resume_seconds")
    if seconds is None:
        return
    if not stream:
        raise invalid("resume_seconds", "is for streams; give `stream: true` with it")
    check_grace(seconds)
    message.resume_seconds = seconds


class ResumableEvents:
    """The streams of events of one server that may be resumed."""

    def __init__(self) -> None:
        self._streams: ResumableStreams[bytes] = ResumableStreams(len, lambda event: 1)

    def events(
        self, request: Request, message: pb.GenerateRequest, make: Callable[[], Events]
    ) -> Events:
        """What a call gets: a stream's rest, or a new one from `make`, resumable if so asked.

        Raises:
            ApiError: the header is malformed.
        """
        tenant = caller_of(request).tenant
        last = request.headers.get(_HEADER)
        if last is not None:
            found = _EVENT_ID.fullmatch(last)
            if found is None:
                raise invalid(_HEADER, f"is {last[:40]!r}; give the id of the last event that came")
            return self._streams.resume(tenant, found[1], int(found[2]), _HEADER)
        if not message.HasField("resume_seconds"):
            return make()
        check_name("request_id", message.request_id)
        message.request_id = message.request_id or secrets.token_hex(12)
        events = _numbered(message.request_id, make())
        return self._streams.start(tenant, message.request_id, message.resume_seconds, events)

    async def close(self) -> None:
        """Give up the streams that wait to be resumed."""
        await self._streams.close()


async def _numbered(name: str, batches: Events) -> AsyncGenerator[bytes, None]:
    """Each event by itself, with its id."""
    number = 0
    async with aclosing(batches):
        async for batch in batches:
            for event in batch.removesuffix(b"\n\n").split(b"\n\n"):
                number += 1
                yield f"id: {name}:{number}\n".encode() + event + b"\n\n"
