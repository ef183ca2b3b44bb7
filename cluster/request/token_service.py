"""Text to tokens and back, as the request path itself does it, for clients who want to know."""

from collections.abc import Mapping

from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.request.api_error import RETRY_AFTER_SECONDS, ApiCode, ApiError
from blockyard.cluster.request.limits import check_known_fields, check_text_size, invalid
from blockyard.cluster.request.served_model import find_served
from blockyard.cluster.request.validation import prompt_tokens
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.workers.description import ModelDescription

__all__ = ["TokenService"]

_MOST_TOKENS = 1 << 20


class TokenService:
    """Serves `Tokenize` and `Detokenize`."""

    def __init__(self, dispatcher: Dispatcher, tokenizers: Mapping[str, ModelTokenizer]) -> None:
        self._dispatcher = dispatcher
        self._tokenizers = tokenizers

    async def tokenize(self, request: pb.TokenizeRequest) -> pb.TokenizeResponse:
        """A prompt's tokens, with those that a request would get. Raises `ApiError`."""
        check_known_fields("request", request)
        model, tokenizer = self._find(request.model)
        if request.without_special_tokens:
            if not request.HasField("prompt"):
                raise invalid("without_special_tokens", "is for `prompt` alone")
            check_text_size("prompt", len(request.prompt.encode()), model.context_tokens)
            token_ids = tokenizer.encode_text(request.prompt)
        else:
            asked = pb.GenerateRequest(model=request.model)
            if request.HasField("prompt"):
                asked.prompt = request.prompt
            elif request.HasField("chat"):
                asked.chat.CopyFrom(request.chat)
            _, token_ids = await prompt_tokens(asked, model, tokenizer)
        return pb.TokenizeResponse(
            model=model.name, token_ids=token_ids, context_tokens=model.context_tokens
        )

    async def detokenize(self, request: pb.DetokenizeRequest) -> pb.DetokenizeResponse:
        """The text of tokens, control tokens included. Raises `ApiError`."""
        check_known_fields("request", request)
        model, tokenizer = self._find(request.model)
        if len(request.token_ids) > _MOST_TOKENS:
            raise invalid("token_ids", f"has more than {_MOST_TOKENS:,} tokens")
        vocabulary = min(model.vocab_size, tokenizer.vocab_size)
        for index, token_id in enumerate(request.token_ids):
            if not 0 <= token_id < vocabulary:
                raise invalid(
                    f"token_ids[{index}]",
                    f"is {token_id}; this model's token ids are 0 to {vocabulary - 1}",
                )
        text = tokenizer.decode_all(request.token_ids)
        return pb.DetokenizeResponse(model=model.name, text=text)

    def _find(self, name: str) -> tuple[ModelDescription, ModelTokenizer]:
        model = find_served(self._dispatcher, name, "model").model
        tokenizer = self._tokenizers.get(model.name)
        if tokenizer is None:
            raise ApiError(
                ApiCode.UNAVAILABLE,
                "model",
                f"{model.name!r} is still being loaded; try again soon",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        return model, tokenizer
