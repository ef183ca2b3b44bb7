"""A Blockyard server under load, over gRPC."""

from collections.abc import Callable
from contextlib import aclosing

from blockyard.cluster.benchmark.load_endpoint import Answer, EndpointError, ServedModel
from blockyard.cluster.benchmark.load_requests import LoadRequest
from blockyard.cluster.client import GenerationClient, ServerError, Settings, build_request
from blockyard.protos import generation_pb2 as pb

__all__ = ["GrpcEndpoint"]


class GrpcEndpoint:
    """Implements `load_endpoint.Endpoint`. Each request is a stream of its own on one channel."""

    def __init__(self, client: GenerationClient, chat: bool) -> None:
        """With `chat` texts go through the model's chat template."""
        self._client = client
        self._chat = chat
        self._name = ""

    async def model(self, name: str) -> ServedModel:
        """See `Endpoint`; requests go to this model from here on."""
        try:
            found = await self._client.model(name)
        except ServerError as error:
            raise EndpointError(error.code, error.message) from None
        self._name = found.name
        return ServedModel(found.name, found.context_tokens, found.vocab_size)

    async def ask(self, request: LoadRequest, arrived: Callable[[int], None]) -> Answer:
        """See `Endpoint`."""
        text, reason, tokens = [], 0, 0
        try:
            # Closed at once where the request takes too long: the server frees what it holds.
            async with aclosing(self._client.stream(self._message(request))) as chunks:
                async for chunk in chunks:
                    if chunk.token_ids:
                        arrived(len(chunk.token_ids))
                    text.append(chunk.text)
                    tokens += len(chunk.token_ids)
                    reason = chunk.finish_reason or reason
        except ServerError as error:
            raise EndpointError(error.code, error.message) from None
        return Answer("".join(text), tokens, reason == pb.FINISH_REASON_STOP)

    async def close(self) -> None:
        """See `Endpoint`."""
        await self._client.close()

    def _message(self, request: LoadRequest) -> pb.GenerateRequest:
        structure = pb.Structure(json_schema=request.schema) if request.schema else None
        settings = Settings(
            max_tokens=request.max_tokens,
            temperature=0.0,
            ignore_eos=None if structure else True,
            structure=structure,
        )
        prompt = request.prompt
        if not isinstance(prompt, str):
            return build_request(token_ids=prompt, model=self._name, settings=settings)
        if self._chat:
            messages = [{"role": "user", "content": prompt}]
            return build_request(messages=messages, model=self._name, settings=settings)
        return build_request(prompt=prompt, model=self._name, settings=settings)
