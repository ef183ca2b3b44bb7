"""What a load consists of: prompts, lengths, schemas, and when each request is due.

The same arguments give the same load. Knows no server. Units: tokens, seconds.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from blockyard.cluster.benchmark.json_tasks import MOST_ANSWER_TOKENS, json_task
from blockyard.cluster.benchmark.workloads import Workload
from blockyard.cluster.capacity.trace_reader import TraceRequest

__all__ = [
    "LoadRequest",
    "MadeUpLoad",
    "as_text",
    "at_poisson_times",
    "fitting",
    "of_json_tasks",
    "of_trace",
    "of_workload",
]

_FIRST_PLAIN_TOKEN = 32
_WORDS = (
    *("time", "person", "year", "way", "day", "thing", "man", "world", "life", "hand", "part"),
    *("child", "eye", "woman", "place", "work", "week", "case", "point", "company", "number"),
    *("group", "problem", "fact", "be", "have", "do", "say", "get", "make", "go", "know"),
)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request.

    Attributes:
        prompt: token ids, or text where an endpoint takes no ids or the answer must make sense.
        max_tokens: length of the answer; exactly that unless there is a schema.
        due_seconds: since the load began; counts in an open loop only.
        schema: JSON schema of the answer; empty: any text.
    """

    prompt: tuple[int, ...] | str
    max_tokens: int
    due_seconds: float = 0.0
    schema: str = ""


@dataclass(frozen=True, slots=True)
class MadeUpLoad:
    """Requests of one shape: random prompts, of which the first `shared_tokens` are the same.

    Attributes:
        requests: how many.
        prompt_tokens, output_tokens: of each.
        shared_tokens: how many the prompts have in common.
        seed: of what is drawn.
    """

    requests: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse a prefix that leaves a request nothing of its own."""
        if self.shared_tokens >= self.prompt_tokens:
            raise ValueError(
                f"prompts of {self.prompt_tokens} tokens cannot share {self.shared_tokens}; give "
                "fewer"
            )

    def of(self, vocab_size: int) -> tuple[LoadRequest, ...]:
        """The requests."""
        shared = _tokens(f"{self.seed} shared", self.shared_tokens, vocab_size)
        own = self.prompt_tokens - self.shared_tokens
        return tuple(
            LoadRequest(
                shared + _tokens(f"{self.seed} {number}", own, vocab_size), self.output_tokens
            )
            for number in range(self.requests)
        )


def of_workload(workload: Workload, vocab_size: int) -> tuple[LoadRequest, ...]:
    """The requests of all its repeats, of which no two begin alike unless they mean to."""
    return tuple(
        LoadRequest(request.prompt, request.max_tokens)
        for repeat in range(workload.repeats)
        for request in workload.shifted(repeat, vocab_size).requests
    )


def of_trace(
    requests: Sequence[TraceRequest], vocab_size: int, speed: float = 1.0
) -> tuple[LoadRequest, ...]:
    """The requests of a trace at its own times; where it says that prompts begin alike, they do."""
    ordered = sorted(requests, key=lambda request: request.arrival_seconds)
    first = ordered[0].arrival_seconds if ordered else 0.0
    return tuple(
        LoadRequest(
            _trace_prompt(number, request, vocab_size),
            max(1, request.output_tokens),
            (request.arrival_seconds - first) / speed,
        )
        for number, request in enumerate(ordered)
    )


def of_json_tasks(count: int, first: int = 0) -> tuple[LoadRequest, ...]:
    """Requests for JSON, each with its schema; from task number `first` on."""
    tasks = (json_task(first + number) for number in range(count))
    return tuple(LoadRequest(prompt, MOST_ANSWER_TOKENS, schema=schema) for prompt, schema in tasks)


def at_poisson_times(
    requests: Iterable[LoadRequest], rate: float, seed: int = 1
) -> tuple[LoadRequest, ...]:
    """The same requests, due as chance has it: `rate` a second on average."""
    draw = random.Random(f"{seed} arrivals")
    now = 0.0
    timed = []
    for request in requests:
        timed.append(replace(request, due_seconds=now))
        now += draw.expovariate(rate)
    return tuple(timed)


def fitting(requests: Iterable[LoadRequest], context_tokens: int) -> tuple[LoadRequest, ...]:
    """Those whose prompt and answer fit a context; of texts nobody knows before they are sent."""
    return tuple(
        request
        for request in requests
        if isinstance(request.prompt, str)
        or len(request.prompt) + request.max_tokens <= context_tokens
    )


def as_text(request: LoadRequest) -> LoadRequest:
    """The same with words for tokens, about one each; equal tokens, equal words."""
    if isinstance(request.prompt, str):
        return request
    return replace(request, prompt=" ".join(_WORDS[t % len(_WORDS)] for t in request.prompt))


def _trace_prompt(number: int, request: TraceRequest, vocab_size: int) -> tuple[int, ...]:
    tokens: list[int] = []
    for prefix_id in request.prefix_ids:
        if len(tokens) >= request.prompt_tokens:
            break
        tokens.extend(_tokens(f"prefix {prefix_id}", request.piece_tokens, vocab_size))
    length = max(1, request.prompt_tokens)
    own = max(0, length - len(tokens))
    return (*tokens, *_tokens(f"own {number}", own, vocab_size))[:length]


def _tokens(seed: str, count: int, vocab_size: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    first = min(_FIRST_PLAIN_TOKEN, vocab_size - 1)
    return tuple(draw.choices(range(first, vocab_size), k=count))
