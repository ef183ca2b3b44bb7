"""Joins the chunks of a stream into the one response of the same request."""

from blockyard.protos import generation_pb2 as pb

__all__ = ["WholeAnswer"]


class WholeAnswer:
    """All answers to one prompt, as far as their chunks have come."""

    def __init__(self) -> None:
        self._choices: dict[int, pb.Choice] = {}
        self._texts: dict[int, list[str]] = {}
        self._thoughts: dict[int, list[str]] = {}
        self._response = pb.GenerateResponse()

    def add(self, chunk: pb.GenerateChunk) -> None:
        """Take the next chunk."""
        response = self._response
        response.request_id, response.model = chunk.request_id, chunk.model
        if chunk.HasField("prompt"):
            response.prompt.CopyFrom(chunk.prompt)
        choice = self._choices.setdefault(chunk.choice, pb.Choice(choice=chunk.choice))
        self._texts.setdefault(chunk.choice, []).append(chunk.text)
        self._thoughts.setdefault(chunk.choice, []).append(chunk.reasoning)
        for piece in chunk.tool_calls:
            if piece.id:
                choice.tool_calls.append(piece)
            else:
                choice.tool_calls[piece.index].arguments += piece.arguments
        choice.weight_versions.extend(chunk.weight_versions)
        response.adapter_version = response.adapter_version or chunk.adapter_version
        choice.token_ids.extend(chunk.token_ids)
        choice.logprobs.extend(chunk.logprobs)
        if chunk.finish_reason:
            self._end(choice, chunk)

    def response(self) -> pb.GenerateResponse:
        """The whole; every answer has ended."""
        for number, choice in self._choices.items():
            choice.text = "".join(self._texts[number])
            choice.reasoning = "".join(self._thoughts[number])
        first = self._choices[0]
        response = self._response
        response.text, response.finish_reason = first.text, first.finish_reason
        response.token_ids.extend(first.token_ids)
        response.timings.CopyFrom(first.timings)
        response.choices.extend(choice for _, choice in sorted(self._choices.items()))
        versions = (name for choice in response.choices for name in choice.weight_versions)
        response.weight_versions.extend(dict.fromkeys(versions))
        return response

    def _end(self, choice: pb.Choice, chunk: pb.GenerateChunk) -> None:
        choice.finish_reason = chunk.finish_reason
        choice.timings.CopyFrom(chunk.timings)
        if chunk.HasField("stop_text"):
            choice.stop_text = chunk.stop_text
        if chunk.HasField("stop_token_id"):
            choice.stop_token_id = chunk.stop_token_id
        usage = self._response.usage
        usage.completion_tokens += chunk.usage.completion_tokens
        if chunk.choice == 0:  # the others find what this one has computed
            usage.prompt_tokens = chunk.usage.prompt_tokens
            usage.cached_tokens = chunk.usage.cached_tokens
