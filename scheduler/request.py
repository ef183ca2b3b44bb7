"""A request as the client sent it (`RequestSpec`), and as the scheduler carries it (`Request`).

`Request` is one value: all that is needed to continue it elsewhere is in it. It does not know how
requests are ordered nor where blocks come from. Units: tokens.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import NamedTuple

from blockyard.scheduler.block_keys import NO_EXTRAS, KeyChain, PrefixExtras
from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.pace import Paced
from blockyard.scheduler.prefix_index import PrefixEntry
from blockyard.scheduler.sampling import SamplingParams, TokenLogprobs
from blockyard.scheduler.way_out import WayOut

__all__ = [
    "NEVER",
    "FinishReason",
    "RefusalCode",
    "Request",
    "RequestRefused",
    "RequestSpec",
    "RequestState",
    "RequestUpdate",
    "Timings",
]


NEVER = 2**62
"""More tokens than there are."""


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    DEADLINE = "deadline"


class RequestState(Enum):
    """Where a request stands. Parked: lost its blocks, comes back before younger ones."""

    WAITING = "waiting"
    RUNNING = "running"
    PARKED = "parked"
    FINISHED = "finished"


class RefusalCode(StrEnum):
    """Whose problem a refusal is: the caller's, the load's, or the server's state.

    Exists: what the caller names is there already.
    """

    INVALID = "invalid"
    EXISTS = "exists"
    EXHAUSTED = "exhausted"
    UNAVAILABLE = "unavailable"


class RequestRefused(Exception):
    """A request was not taken. `field` names the caller's field when the mistake is theirs."""

    def __init__(self, code: RefusalCode, message: str, field: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What an ingress asks of an engine: everything resolved, nothing about how it is served.

    A larger `priority` is served first; the default is 0. Within a priority tenants share fairly;
    those who name none are one tenant. `deadline_seconds` counts from the arrival; None means that
    the client waits as long as it takes.

    `extras` is what else decides the KV of its prefix. `block_keys` are keys of the prompt's full
    blocks from the first on, as far as the ingress has computed them: a hint that saves time and
    is never trusted. Without `use_prefix_cache` it neither finds blocks of others nor leaves any.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0
    tenant: str = ""
    deadline_seconds: float | None = None
    extras: PrefixExtras = NO_EXTRAS
    use_prefix_cache: bool = True
    block_keys: tuple[bytes, ...] = ()
    num_choices: int = 1
    """Answers wanted; the prompt is computed once and its blocks are shared."""
    name: str = ""
    """What its client calls it, if anything. Ingresses let one live request of a tenant have it."""
    part_of: str = ""
    """What its client calls the request that this is a part of, as one of several prompts."""
    first_number: int = 0
    """Of its answers among those of all parts."""
    traceparent: str = ""
    """The span that it is served under, in W3C's words; empty when nobody traces it."""


class Timings(NamedTuple):
    """Seconds, on the engine's clock.

    queue: from arrival to the first step; prefill: from there to the first token;
    decode: from the first token to the last; preemptions are inside the last two.
    """

    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    preemptions: int


class RequestUpdate(NamedTuple):
    """News of one request after a step: new tokens, and on the last update how it ended.

    A named tuple, because one is made for every token and it costs a third of a frozen dataclass.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    error: str = ""
    cached_tokens: int = 0
    timings: Timings | None = None
    choice: int = 0
    """Which of the request's answers this is about."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids`, if the client wants them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the prompt's tokens that follow those told of before; the first has none."""
    weights: tuple[str, ...] = ()
    """Versions of the model's weights that made `token_ids`, in order; none: those that the server
    was started with."""


@dataclass(slots=True, eq=False)
class Request(Paced):
    """A request inside the scheduler, or one of its choices once they have forked.

    Each request merely has computed tokens chasing known tokens: prefill, decode and recompute
    after a preemption are the same thing. `tokens` is prompt then output.
    """

    spec: RequestSpec
    sequence: int
    """Order of arrival, unique in a scheduler."""
    max_tokens: int
    """The client's max_tokens, or what fits when it gave none."""
    table: BlockTable
    arrived_at: float
    choice: int = 0
    """Index of the answer that it makes; 0 for the one that computes the prompt."""
    pending_forks: list[int] = field(default_factory=list)
    """Choices that begin with its tokens when it samples next; each has a place kept for it."""
    forgone: bool = False
    """Its own answer is not wanted any more; it goes on only until those have begun."""
    held: bool = False
    """It searches, has sampled, and waits for the others of its search; or it expects blocks."""
    expects: bool = False
    """Its blocks are on their way from the group that it has left."""
    num_brought: int = 0
    """Tokens whose KV came from there."""
    branched: bool = False
    """It began with blocks of another choice, without a step that told the workers."""
    tokens: list[int] = field(default_factory=list)
    state: RequestState = RequestState.WAITING
    handle: int | None = None
    """Name of this admission towards the workers; None while it holds no place in the batch."""
    num_preemptions: int = 0
    times_passed: int = 0
    """Younger equals admitted past it while it waited for blocks."""
    cached_tokens: int = 0
    """Tokens found in the prefix index when it was first admitted."""
    num_lost: int = 0
    """Tokens that it had computed when it was preempted: up to here it may compute some again."""
    num_saved: int = 0
    """Computed tokens whose KV is kept while it is parked, on the device and then on the host."""
    host_ids: list[int] = field(default_factory=list)
    """Host blocks that hold its blocks from index `host_start` on."""
    host_start: int = 0
    chain: KeyChain | None = None
    """Keys of its blocks; None when it takes no part in the prefix index."""
    path: list[PrefixEntry] = field(default_factory=list)
    """Index entries of its leading blocks: held ones while it runs, a match while it waits."""
    publish_at: int = NEVER
    """Computed tokens with which the next block for the index is full."""
    num_scored: int = 0
    """Tokens of the prompt whose log probabilities its client was told."""
    num_announced: int = 0
    """Blocks that it has said it will compute."""
    way_out: tuple[str, WayOut] | None = None
    """How it goes if it is preempted for the request of that id; or went, since it is parked."""
    patience_over: bool = False
    """It has waited long enough for others to compute its prefix."""
    started_at: float | None = None
    first_token_at: float | None = None
    finish_reason: FinishReason | None = None
    # Of the spec, at hand because every step asks for them.
    request_id: str = field(init=False)
    """The id the ingress gave it."""
    num_prompt: int = field(init=False)
    """Tokens in the client's prompt."""
    end_at: int = field(init=False)
    """Known tokens with which it has produced all it may."""
    urgency: tuple[int, int, int] = field(init=False)
    """Sort key: the smaller, the sooner served (highest priority, then oldest, then choice)."""
    sampling: SamplingParams = field(init=False)
    """The spec's, for this choice."""

    def __post_init__(self) -> None:
        """Take from the spec what never changes."""
        self.request_id = self.spec.request_id
        self.num_prompt = len(self.spec.prompt_token_ids)
        self.end_at = self.num_prompt + self.max_tokens
        self.urgency = (-self.spec.priority, self.sequence, self.choice)
        self.sampling = self.sampling_of(self.choice) if self.choice else self.spec.sampling

    def __lt__(self, other: "Request") -> bool:
        """Whether this one is more urgent."""
        return self.urgency < other.urgency

    def sampling_of(self, choice: int) -> SamplingParams:
        """The spec's parameters for one of its choices; those of a search are all alike."""
        sampling = self.spec.sampling
        if sampling.searches:
            return sampling
        # The spec's own index is where the choices of this request begin.
        return replace(sampling, choice=sampling.choice + choice) if choice else sampling

    @property
    def member(self) -> tuple[str, int]:
        """What names it among all that are served."""
        return self.request_id, self.choice

    @property
    def is_returning(self) -> bool:
        """Whether it may hold blocks without a place: it has computed before, or its parent had.

        So it has when its blocks came from another group.
        """
        return self.num_preemptions > 0 or self.branched or self.num_brought > 0

    @property
    def num_output(self) -> int:
        """Tokens produced so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_known(self) -> int:
        """Tokens that are known once the steps in flight have ended.

        Whoever computes its last known token samples the next one.
        """
        return max(len(self.tokens), self.num_planned + 1)

    @property
    def num_pending(self) -> int:
        """Known tokens not yet computed nor promised."""
        return max(0, len(self.tokens) - self.num_planned)
