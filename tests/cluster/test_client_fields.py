"""Refusals name fields as the client spelled them, whoever refuses."""

import pytest

from blockyard.cluster.request.api_error import ApiError, from_refusal
from blockyard.cluster.request.validation import client_fields, prepare_request
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import RefusalCode, RequestRefused
from blockyard.workers.description import ModelDescription

CHAT = pb.GenerateRequest(
    chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="hello")])
)


@pytest.mark.parametrize(
    ("request_", "scheduler_field", "client_field"),
    [
        (pb.GenerateRequest(prompt="hello"), "prompt", "prompt"),
        (pb.GenerateRequest(tokens=pb.TokenIds(ids=[1])), "prompt", "tokens.ids"),
        (CHAT, "prompt", "chat.messages"),
        (CHAT, "max_tokens", "sampling.max_tokens"),
        (CHAT, "min_tokens", "sampling.min_tokens"),
        (CHAT, "request_id", "request_id"),
        (CHAT, "", ""),
    ],
)
def test_a_scheduler_s_refusal(
    request_: pb.GenerateRequest, scheduler_field: str, client_field: str
) -> None:
    refusal = RequestRefused(RefusalCode.INVALID, "does not fit", scheduler_field)
    assert from_refusal(refusal, client_fields(request_)).field == client_field


@pytest.mark.parametrize("content", ["", " \n\t"])
async def test_a_chat_that_says_nothing_is_refused(
    content: str, description: ModelDescription, tokenizer: ModelTokenizer
) -> None:
    request = pb.GenerateRequest(chat=pb.ChatMessages(messages=[*CHAT.chat.messages]))
    request.chat.messages.append(pb.ChatMessage(role="user", content=content))
    with pytest.raises(ApiError, match="is empty") as refused:
        await prepare_request(request, description, tokenizer)
    assert refused.value.field == "chat.messages[1].content"
