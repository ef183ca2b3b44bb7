"""`POST /v1/completions`: from its JSON to one request message for each prompt."""

from dataclasses import dataclass

from blockyard.cluster.http.beam_request import read_beams
from blockyard.cluster.http.chat_request import read_stream_options
from blockyard.cluster.http.json_fields import JsonFields, check_token_id
from blockyard.cluster.http.resumable_events import read_resume_seconds
from blockyard.cluster.http.sampling_request import read_sampling
from blockyard.cluster.request.limits import invalid
from blockyard.protos import generation_pb2 as pb

__all__ = ["DEFAULT_MAX_TOKENS", "MAX_PROMPTS", "CompletionRequest", "read_completion_request"]

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this method alone."""

MAX_PROMPTS = 128

Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What is asked of the request path, a message for each prompt, and how to tell the answer."""

    messages: tuple[pb.GenerateRequest, ...]
    stream: bool
    include_usage: bool

    @property
    def num_choices(self) -> int:
        """Answers to each prompt."""
        return self.messages[0].sampling.n or 1


def read_completion_request(body: object) -> CompletionRequest:
    """Read and check the shape; what the values mean is checked by the request path.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    fields = JsonFields(body)
    common = pb.GenerateRequest(
        model=fields.text("model") or "", request_id=fields.text("request_id") or ""
    )
    prompts = _prompts(fields.take("prompt"))
    sampling = common.sampling
    max_tokens = fields.whole("max_tokens")
    sampling.max_tokens = DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
    logprobs = fields.whole("logprobs", -(2**31), 2**31 - 1)
    if logprobs is not None:
        sampling.logprobs = logprobs
    if fields.flag("echo"):
        sampling.echo = True
        if logprobs is not None:
            sampling.prompt_logprobs = logprobs
    read_sampling(fields, sampling)
    stream = fields.flag("stream") or False
    include_usage = read_stream_options(fields, stream)
    read_resume_seconds(fields, common, stream)
    best_of = fields.whole("best_of")
    if not read_beams(fields, sampling, stream, best_of) and best_of is not None:
        if stream and best_of != (sampling.n or 1):
            raise invalid("best_of", f"is {best_of}; the best are known at the end, do not stream")
        sampling.best_of = best_of
    if fields.text("suffix"):
        raise invalid("suffix", "is not served; leave it out")
    fields.refuse_rest()
    messages: list[pb.GenerateRequest] = []
    for prompt in prompts:
        message = pb.GenerateRequest()
        message.CopyFrom(common)
        if isinstance(prompt, str):
            message.prompt = prompt
        else:
            message.tokens.SetInParent()
            message.tokens.ids.extend(prompt)
        if messages:
            message.request_id = ""  # a name is for one request; answers bear the first one's
        messages.append(message)
    return CompletionRequest(tuple(messages), stream, include_usage)


def _prompts(value: object) -> list[Prompt]:
    """One prompt or several, each a text or tokens."""
    if isinstance(value, str):
        return [value]
    if value is None:
        raise invalid("prompt", "is missing")
    if not isinstance(value, list):
        raise invalid("prompt", "must be a string, a list of token ids, or a list of either")
    if not value:
        raise invalid("prompt", "is empty; give at least one token")
    if not isinstance(value[0], str | list):
        return [_tokens("prompt", value)]
    if len(value) > MAX_PROMPTS:
        raise invalid("prompt", f"has {len(value):,} prompts; at most {MAX_PROMPTS} are taken")
    return [
        entry if isinstance(entry, str) else _tokens(f"prompt[{index}]", entry)
        for index, entry in enumerate(value)
    ]


def _tokens(field: str, value: object) -> list[int]:
    if not isinstance(value, list):
        raise invalid(field, "must be a string or a list of token ids")
    for index, token_id in enumerate(value):
        check_token_id(f"{field}[{index}]", token_id)
    return value
