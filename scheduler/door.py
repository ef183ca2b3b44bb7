"""What can never be served is refused at the door, with the numbers. Units: tokens and blocks.

What could be served but not now is refused too, as the load's fault and not the caller's.
The last token of an answer is sent but never read back, so it needs no slot: a request needs
`prompt + max_tokens - 1` slots.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

import numpy as np

from blockyard.scheduler.block_keys import MAX_TOKEN_ID, pack_token_ids
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.deadline import (
    DeadlineMiss,
    fewest_outputs,
    judge_deadline,
    least_tokens,
)
from blockyard.scheduler.request import RefusalCode, Request, RequestRefused, RequestSpec
from blockyard.scheduler.sampling import InvalidParameter, SamplingParams
from blockyard.scheduler.snapshot import RequestSnapshot, check_snapshot

__all__ = [
    "pack_prompt",
    "refuse_hopeless",
    "refuse_now",
    "refuse_snapshot",
    "resolve_max_tokens",
]

_FEW_TOKENS = 512
"""Up to so many Python is done before numpy has begun."""


def resolve_max_tokens(spec: RequestSpec, config: SchedulerConfig, num_blocks: int) -> int:
    """How many tokens the request may produce: what the client asked for, or what fits.

    Raises:
        RequestRefused: INVALID, naming the field, when the request could not be finished even with
            the whole pool to itself.
    """
    if not 1 <= spec.num_choices <= config.max_running:
        raise _invalid(
            "n",
            f"{spec.num_choices} choices are asked for; from 1 to {config.max_running}, which is "
            "how many run at once, can be made",
        )
    prompt = len(spec.prompt_token_ids)
    context = config.max_context_tokens
    slots = num_blocks * config.block_size
    if prompt == 0:
        raise _invalid("prompt", "the prompt has no tokens; send at least one")
    _check_sampled_ids(spec.sampling, config.vocab_size)
    if prompt >= context:
        raise _invalid(
            "prompt",
            f"the prompt has {prompt} tokens and the context holds {context}, which leaves no "
            f"room for an answer; shorten the prompt to {context - 1} tokens or fewer",
        )
    if prompt > slots:
        raise _invalid(
            "prompt",
            f"the prompt has {prompt} tokens and needs {-(-prompt // config.block_size)} blocks "
            f"of {config.block_size} tokens; the pool has {num_blocks}; shorten the prompt to "
            f"{slots} tokens or fewer",
        )
    fitting = min(context - prompt, slots - prompt + 1)
    asked = spec.sampling.max_tokens
    if asked is not None and prompt + asked > context:
        raise _invalid(
            "max_tokens",
            f"the prompt's {prompt} tokens and max_tokens of {asked} make {prompt + asked}, the "
            f"context holds {context}; ask for {fitting} or fewer",
        )
    if asked is not None and prompt + asked - 1 > slots:
        needed = -(-(prompt + asked - 1) // config.block_size)
        raise _invalid(
            "max_tokens",
            f"the prompt's {prompt} tokens and max_tokens of {asked} need {needed} blocks of "
            f"{config.block_size} tokens, the pool has {num_blocks}; ask for {fitting} or fewer",
        )
    max_tokens = fitting if asked is None else asked
    if spec.sampling.min_tokens > max_tokens:
        raise _invalid(
            "min_tokens",
            f"min_tokens is {spec.sampling.min_tokens}, but after the prompt's {prompt} tokens "
            f"only {max_tokens} fit; ask for {max_tokens} or fewer",
        )
    return max_tokens


def pack_prompt(spec: RequestSpec, config: SchedulerConfig) -> bytes:
    """The token ids of a prompt, packed, which is the quickest way to look at them all.

    Raises:
        RequestRefused: INVALID, one of them is not in the vocabulary.
    """
    try:
        packed = pack_token_ids(spec.prompt_token_ids)
    except OverflowError:
        largest = MAX_TOKEN_ID + 1
    else:
        largest = _largest(spec.prompt_token_ids, packed)
    if largest >= config.vocab_size:
        raise _invalid("prompt", f"token ids must be from 0 to {config.vocab_size - 1}")
    return packed


def _largest(token_ids: Sequence[int], packed: bytes) -> int:
    """The largest of some token ids, in the way that is quicker for so many."""
    if len(token_ids) < _FEW_TOKENS:
        return max(token_ids, default=0)
    return int(np.frombuffer(packed, dtype="<u4").max(initial=0))


def refuse_now(
    request_id: str,
    served: Container[str],
    draining: bool,
    num_waiting: int,
    config: SchedulerConfig,
) -> None:
    """Refuse what is not to be queued at this moment, whatever it asks.

    Raises:
        RequestRefused: INVALID when the id is in use, for nobody could tell their tokens apart;
            UNAVAILABLE when draining; EXHAUSTED when too many wait.
    """
    if request_id in served:
        raise _invalid(
            "request_id",
            f"a request with id {request_id!r} is being served; choose another id or wait until "
            "it ends",
        )
    if draining:
        raise RequestRefused(
            RefusalCode.UNAVAILABLE, "the server is shutting down; ask another one"
        )
    if num_waiting >= config.max_waiting:
        raise RequestRefused(
            RefusalCode.EXHAUSTED,
            f"{num_waiting} requests wait already, at most {config.max_waiting} may; try again "
            "later",
        )


def refuse_snapshot(snapshot: RequestSnapshot, config: SchedulerConfig, num_blocks: int) -> None:
    """Refuse a request that another scheduler served and this one could never finish.

    Raises:
        RequestRefused: INVALID, naming the part.
    """
    spec = snapshot.spec
    try:
        sampling = replace(spec.sampling, max_tokens=snapshot.max_tokens)
    except InvalidParameter as error:
        raise _invalid(error.field, error.message) from None
    # Its choices need not run at once, so each is judged alone.
    resolve_max_tokens(replace(spec, sampling=sampling, num_choices=1), config, num_blocks)
    pack_prompt(spec, config)
    check_snapshot(snapshot, config.max_running)


def refuse_hopeless(request: Request, tokens_ahead: int, rates: CostModel) -> None:
    """Refuse a request whose deadline cannot be met, so that its client may try elsewhere.

    Raises:
        RequestRefused: INVALID when it could not be met by anybody at these rates, EXHAUSTED when
            too much work is ahead of it.
    """
    verdict = judge_deadline(
        request.spec.deadline_seconds or 0.0,
        least_tokens(request),
        fewest_outputs(request),
        tokens_ahead,
        rates,
    )
    if verdict is None:
        return
    if verdict.miss is DeadlineMiss.QUEUE:
        raise RequestRefused(RefusalCode.EXHAUSTED, verdict.message)
    raise _invalid("deadline_seconds", verdict.message)


def _check_sampled_ids(sampling: SamplingParams, vocab_size: int) -> None:
    """Refuse token ids that a sampler would look up past the end of its scores."""
    named: list[tuple[str, Iterable[int]]] = []
    if sampling.stop_token_ids:
        named.append(("stop_token_ids", sampling.stop_token_ids))
    if sampling.logit_bias or sampling.allowed_token_ids or sampling.bad_words:
        named += [
            ("logit_bias", [token_id for token_id, _ in sampling.logit_bias]),
            ("allowed_token_ids", sampling.allowed_token_ids),
            ("bad_words", [token_id for word in sampling.bad_words for token_id in word]),
        ]
    for name, ids in named:
        if any(not 0 <= token_id < vocab_size for token_id in ids):
            raise _invalid(name, f"token ids must be from 0 to {vocab_size - 1}")


def _invalid(field: str, message: str) -> RequestRefused:
    return RequestRefused(RefusalCode.INVALID, message, field)
