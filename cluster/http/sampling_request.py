"""Sampling fields that chat and text completions share, from OpenAI's names to the message's.

Besides OpenAI's own these are the extensions that clients of other servers know: `top_k`, `min_p`,
`repetition_penalty`, `stop_token_ids` and so on.
"""

import re

from blockyard.cluster.http.json_fields import JsonFields
from blockyard.cluster.http.structure_request import read_structure
from blockyard.cluster.request.limits import invalid
from blockyard.protos import generation_pb2 as pb

__all__ = ["read_sampling"]

_TOKEN_ID = re.compile(r"-?[0-9]{1,10}")
_INFORMATION = (
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)
"""Fields by which clients tell something that changes no answer."""

_NUMBERS = (
    *("temperature", "top_p", "min_p", "typical_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)


def read_sampling(fields: JsonFields, sampling: pb.SamplingParameters) -> None:
    """Move what is given from `fields` to `sampling`.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    for name in _INFORMATION:
        fields.take(name)
    for name in _NUMBERS:
        if (number := fields.number(name)) is not None:
            setattr(sampling, name, number)
    if (top_k := fields.whole("top_k")) is not None:
        sampling.top_k = 0 if top_k == -1 else top_k  # -1 means all to clients of other servers
    if (seed := fields.whole("seed", -(2**63), 2**64 - 1)) is not None:
        sampling.seed = seed % 2**64
    for name in ("n", "priority", "prompt_logprobs"):
        if (number := fields.whole(name, -(2**31), 2**31 - 1)) is not None:
            setattr(sampling, name, number)
    if (min_tokens := fields.whole("min_tokens")) is not None:
        sampling.min_tokens = min_tokens
    if (ignore_eos := fields.flag("ignore_eos")) is not None:
        sampling.ignore_eos = ignore_eos
    if (include_stop := fields.flag("include_stop_str_in_output")) is not None:
        sampling.include_stop = include_stop
    sampling.stop.extend(fields.texts("stop"))
    sampling.bad_words.extend(fields.texts("bad_words"))
    sampling.stop_token_ids.extend(fields.token_ids("stop_token_ids"))
    sampling.allowed_token_ids.extend(fields.token_ids("allowed_token_ids"))
    _read_bias(fields, sampling)
    read_structure(fields, sampling)


def _read_bias(fields: JsonFields, sampling: pb.SamplingParameters) -> None:
    biases = fields.take("logit_bias")
    if biases is None:
        return
    reader = JsonFields(biases, fields.name("logit_bias"))
    for key in biases:
        bias = reader.number(key)
        if not _TOKEN_ID.fullmatch(key) or not -(2**31) <= int(key) < 2**31:
            raise invalid(reader.name(key[:40]), "is not the id of a token")
        sampling.logit_bias[int(key)] = bias if bias is not None else 0.0
