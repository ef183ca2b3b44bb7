"""A request as the client sent it (`RequestSpec`), and as the scheduler carries it (`Request`).

`Request` is one value: all that is needed to continue it elsewhere is in it. It does not know how
requests are ordered nor where blocks come from. Units: tokens.
"""

from dataclasses import dataclass, field
from enum import Enum, StrEnum

from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.sampling import SamplingParams

__all__ = [
    "FinishReason",
    "RefusalCode",
    "Request",
    "RequestRefused",
    "RequestSpec",
    "RequestState",
    "RequestUpdate",
    "Timings",
]


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
    """Whose problem a refusal is: the caller's, the load's, or the server's state."""

    INVALID = "invalid"
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
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0
    tenant: str = ""
    deadline_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds, on the engine's clock.

    queue: from arrival to the first step; prefill: from there to the first token;
    decode: from the first token to the last; preemptions are inside the last two.
    """

    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """News of one request after a step: new tokens, and on the last update how it ended."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    error: str = ""
    cached_tokens: int = 0
    timings: Timings | None = None


@dataclass(slots=True)
class Request:
    """A request inside the scheduler.

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
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Tokens whose KV is written."""
    num_promised: int = 0
    """Tokens that the step in flight computes."""
    state: RequestState = RequestState.WAITING
    handle: int | None = None
    """Name of this admission towards the workers; None while it holds no place in the batch."""
    last_step: int = 0
    """Newest step that touches its blocks."""
    num_preemptions: int = 0
    times_passed: int = 0
    """Younger equals admitted past it while it waited for blocks."""
    cached_tokens: int = 0
    started_at: float | None = None
    first_token_at: float | None = None
    finish_reason: FinishReason | None = None

    @property
    def request_id(self) -> str:
        """The id the ingress gave it."""
        return self.spec.request_id

    @property
    def num_prompt(self) -> int:
        """Tokens in the client's prompt."""
        return len(self.spec.prompt_token_ids)

    @property
    def num_output(self) -> int:
        """Tokens produced so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Known tokens not yet computed nor promised."""
        return len(self.tokens) - self.num_computed - self.num_promised

    @property
    def urgency(self) -> tuple[int, int]:
        """Sort key: the smaller, the sooner served (highest priority, then oldest)."""
        return (-self.spec.priority, self.sequence)
