"""From a client's sampling fields to resolved parameters, or a refusal that names the field.

Defaults, the seed and end-of-text tokens are resolved here; token ids are held against the
vocabulary, and bad words are turned into tokens. Units: tokens.
"""

import math
import secrets
from collections.abc import Iterable, Iterator

from blockyard.cluster.request.api_error import from_invalid_parameter
from blockyard.cluster.request.beam_fields import check_beams, search_sampling, searches
from blockyard.cluster.request.limits import (
    MAX_BAD_WORD_STRINGS,
    MAX_CHOICES,
    MAX_STOP_CHARACTERS,
    check_known_fields,
    invalid,
)
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.sampling import (
    MAX_BAD_WORD_TOKENS,
    InvalidParameter,
    SamplingParams,
)
from blockyard.workers.description import ModelDescription

__all__ = ["check_served", "num_made", "num_wanted", "resolve_sampling"]


def check_served(sampling: pb.SamplingParameters) -> None:
    """Refuse fields that are not known or not served, and too many answers."""
    check_known_fields("sampling", sampling)
    if sampling.HasField("n") and not 1 <= sampling.n <= MAX_CHOICES:
        raise invalid("sampling.n", f"is {sampling.n}; 1 to {MAX_CHOICES} answers are given")
    if sampling.HasField("best_of") and not num_wanted(sampling) <= sampling.best_of <= MAX_CHOICES:
        raise invalid(
            "sampling.best_of",
            f"is {sampling.best_of}; from n ({num_wanted(sampling)}) to {MAX_CHOICES} are made",
        )
    check_beams(sampling)


def num_wanted(sampling: pb.SamplingParameters) -> int:
    """Answers that the client gets."""
    return int(sampling.n) if sampling.HasField("n") else 1


def num_made(sampling: pb.SamplingParameters) -> int:
    """Answers to make, of which the client gets the best."""
    if searches(sampling):
        return int(sampling.beam_width)
    return max(num_wanted(sampling), int(sampling.best_of))


def resolve_sampling(
    sampling: pb.SamplingParameters,
    model: ModelDescription,
    tokenizer: ModelTokenizer,
    grammar: str = "",
) -> SamplingParams:
    """The parameters that an engine gets; `grammar` is that of the structure asked for.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    # Ids that a model has room for but its tokenizer does not know spell nothing.
    vocabulary = min(model.vocab_size, tokenizer.vocab_size)
    _check_ids("logit_bias", sampling.logit_bias, vocabulary, by_value=True)
    _check_ids("allowed_token_ids", sampling.allowed_token_ids, vocabulary)
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocabulary)
    stops = () if sampling.ignore_eos else model.eos_token_ids
    stops = tuple(dict.fromkeys((*stops, *sampling.stop_token_ids)))
    bad_words = tuple(_bad_words(sampling.bad_words, tokenizer))
    advice = model.sampling
    fallback = _number(sampling, "fallback_temperature", 1.0)
    try:
        if searches(sampling):
            return search_sampling(sampling, stops)
        return SamplingParams(
            max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else None,
            top_k=_top_k(sampling, model),
            seed=sampling.seed if sampling.HasField("seed") else secrets.randbits(64),
            min_tokens=sampling.min_tokens,
            stop_token_ids=stops,
            logit_bias=tuple(sorted(sampling.logit_bias.items())),
            allowed_token_ids=tuple(dict.fromkeys(sampling.allowed_token_ids)),
            bad_words=bad_words,
            logprobs=_logprobs(sampling),
            prompt_logprobs=(
                sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None
            ),
            grammar=grammar,
            temperature=_number(sampling, "temperature", _advised(advice.temperature, fallback)),
            top_p=_number(sampling, "top_p", _advised(advice.top_p, 1.0)),
            min_p=_number(sampling, "min_p", _advised(advice.min_p, 0.0)),
            typical_p=_number(sampling, "typical_p", 1.0),
            frequency_penalty=_number(sampling, "frequency_penalty", 0.0),
            presence_penalty=_number(sampling, "presence_penalty", 0.0),
            repetition_penalty=_number(
                sampling, "repetition_penalty", _advised(advice.repetition_penalty, 1.0)
            ),
        )
    except InvalidParameter as error:
        raise from_invalid_parameter(error, "sampling") from None


def _top_k(sampling: pb.SamplingParameters, model: ModelDescription) -> int:
    """Tokens to choose from; 0 for all, as are as many as there are, or more."""
    top_k = sampling.top_k if sampling.HasField("top_k") else max(0, model.sampling.top_k or 0)
    return top_k if top_k < model.vocab_size else 0


def _advised(advice: float | None, default: float) -> float:
    """What the model's makers advise, else what is usual."""
    return default if advice is None else advice


def _logprobs(sampling: pb.SamplingParameters) -> int | None:
    """Likeliest tokens to tell; the best answers cannot be found without the tokens' own."""
    if sampling.HasField("logprobs"):
        return int(sampling.logprobs)
    return 0 if num_made(sampling) > num_wanted(sampling) else None


def _number(sampling: pb.SamplingParameters, name: str, default: float) -> float:
    value: float = getattr(sampling, name) if sampling.HasField(name) else default
    if not math.isfinite(value):
        raise invalid(f"sampling.{name}", f"is {value}; it must be a finite number")
    return value


def _check_ids(field: str, ids: Iterable[int], vocabulary: int, *, by_value: bool = False) -> None:
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocabulary:
            raise invalid(
                f"sampling.{field}[{token_id if by_value else index}]",
                f"is {token_id}; this model's token ids are 0 to {vocabulary - 1}",
            )


def _bad_words(words: Iterable[str], tokenizer: ModelTokenizer) -> Iterator[tuple[int, ...]]:
    """Tokens of each word, at the beginning of a text and after a space."""
    for index, word in enumerate(words):
        field = f"sampling.bad_words[{index}]"
        if index >= MAX_BAD_WORD_STRINGS:
            raise invalid(
                "sampling.bad_words",
                f"has too many words; at most {MAX_BAD_WORD_STRINGS} are taken",
            )
        if not word.strip() or len(word) > MAX_STOP_CHARACTERS:
            raise invalid(
                field,
                f"has {len(word):,} characters; it must have 1 to {MAX_STOP_CHARACTERS}, and not "
                "spaces alone",
            )
        spellings = {tokenizer.encode_text(word), tokenizer.encode_text(f" {word.lstrip()}")}
        longest = max(map(len, spellings))
        if longest > MAX_BAD_WORD_TOKENS:
            raise invalid(field, f"has {longest} tokens; at most {MAX_BAD_WORD_TOKENS} are taken")
        yield from sorted(spelling for spelling in spellings if spelling)
