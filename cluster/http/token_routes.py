"""`POST /tokenize` and `POST /detokenize`: from their JSON to the messages."""

from blockyard.cluster.http.chat_request import read_messages
from blockyard.cluster.http.json_fields import JsonFields
from blockyard.cluster.http.tool_request import read_tools
from blockyard.protos import generation_pb2 as pb

__all__ = ["read_detokenize", "read_tokenize"]


def read_tokenize(body: object) -> pb.TokenizeRequest:
    """A `prompt`, or the `messages` of a chat. Raises `ApiError`."""
    fields = JsonFields(body)
    request = pb.TokenizeRequest(model=fields.text("model") or "")
    if (prompt := fields.text("prompt")) is not None:
        request.prompt = prompt
    else:
        read_messages(fields, request.chat)
        read_tools(fields, request.chat)
    request.without_special_tokens = fields.flag("add_special_tokens") is False
    fields.refuse_rest()
    return request


def read_detokenize(body: object) -> pb.DetokenizeRequest:
    """The `tokens`. Raises `ApiError`."""
    fields = JsonFields(body)
    request = pb.DetokenizeRequest(
        model=fields.text("model") or "", token_ids=fields.token_ids("tokens")
    )
    fields.refuse_rest()
    return request
