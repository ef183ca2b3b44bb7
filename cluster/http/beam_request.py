"""Beam search in JSON requests, by the names that clients of vLLM know."""

from blockyard.cluster.http.json_fields import JsonFields
from blockyard.cluster.request.limits import invalid
from blockyard.protos import generation_pb2 as pb

__all__ = ["read_beams"]


def read_beams(
    fields: JsonFields, sampling: pb.SamplingParameters, stream: bool, best_of: int | None = None
) -> bool:
    """Move what is said of a search from `fields` to `sampling`; whether one is wanted.

    As many answers are followed at once as `best_of` says, else `n`; `n` of them are given.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    wanted = fields.flag("use_beam_search") or False
    length_penalty = fields.number("length_penalty")
    early_stopping = fields.flag("early_stopping")
    if length_penalty is not None:
        sampling.length_penalty = length_penalty
    if early_stopping is not None:
        sampling.early_stopping = early_stopping
    if not wanted:
        return False
    if stream:
        raise invalid("use_beam_search", "has its answers at the end; do not stream")
    width = best_of if best_of is not None else sampling.n
    if width < 2:
        raise invalid("use_beam_search", "follows as many answers as `n` says; give 2 or more")
    sampling.beam_width = width
    return True
