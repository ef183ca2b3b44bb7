"""Beam search among a client's sampling fields: what goes with it, and what it is told by.

A search takes the likeliest answers as the model has them: whatever changes scores or draws tokens
is refused beside it, by name. Units: tokens.
"""

from collections.abc import Iterator

from blockyard.cluster.request.limits import MAX_CHOICES, invalid
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.sampling import GREEDY_TEMPERATURE, SamplingParams

__all__ = ["check_beams", "search_sampling", "searches"]

_NEUTRAL = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Parameters that draw or change scores, and the value with which they do not."""


def searches(sampling: pb.SamplingParameters) -> bool:
    """Whether answers are searched for, not sampled."""
    return bool(sampling.beam_width > 1)


def check_beams(sampling: pb.SamplingParameters) -> None:
    """Refuse what is no search, or does not go with one.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    if sampling.HasField("beam_width") and not 1 <= sampling.beam_width <= MAX_CHOICES:
        raise invalid(
            "sampling.beam_width", f"is {sampling.beam_width}; 1 to {MAX_CHOICES} are followed"
        )
    if not searches(sampling):
        if sampling.early_stopping or sampling.length_penalty not in (0.0, 1.0):
            name = "early_stopping" if sampling.early_stopping else "length_penalty"
            raise invalid(f"sampling.{name}", "is for a beam search of 2 or more beams")
        return
    if sampling.n > sampling.beam_width:
        raise invalid(
            "sampling.n", f"is {sampling.n}, but only {sampling.beam_width} beams are followed"
        )
    for name in _against(sampling):
        raise invalid(f"sampling.{name}", "does not go with a beam search; leave it out")


def search_sampling(
    sampling: pb.SamplingParameters, stop_token_ids: tuple[int, ...]
) -> SamplingParams:
    """The parameters of a search.

    Raises:
        InvalidParameter: one is out of range.
    """
    return SamplingParams(
        max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else None,
        temperature=0.0,
        min_tokens=sampling.min_tokens,
        stop_token_ids=stop_token_ids,
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        prompt_logprobs=(
            sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None
        ),
        beam_width=sampling.beam_width,
        length_penalty=sampling.length_penalty if sampling.HasField("length_penalty") else 1.0,
        early_stopping=sampling.early_stopping,
    )


def _against(sampling: pb.SamplingParameters) -> Iterator[str]:
    """Fields that are given and do not go with a search."""
    if sampling.HasField("temperature") and sampling.temperature > GREEDY_TEMPERATURE:
        yield "temperature"
    for name, neutral in _NEUTRAL.items():
        if sampling.HasField(name) and getattr(sampling, name) != neutral:
            yield name
    for name in ("stop", "logit_bias", "allowed_token_ids", "bad_words"):
        if getattr(sampling, name):
            yield name
    for name in ("structure", "best_of"):
        if sampling.HasField(name):
            yield name
