"""Every message on our wires, by channel: engine to worker, ingress to engine, both to central.

Values only; `wire.py` carries them. A `ticket` pairs an answer with its question on a connection.
"""

import msgspec

from blockyard.cluster.binding.waiting_messages import FromWaiting, ToWaiting
from blockyard.cluster.books.arrival_log import ArrivalBatch
from blockyard.cluster.books.central_books import AskCentralBooks, CentralBooksAnswer
from blockyard.cluster.books.group_books import GroupBooks
from blockyard.cluster.chaos.faults import Disturb, Disturbed
from blockyard.cluster.group_identity import GroupIdentity
from blockyard.cluster.moves.consignment import Resume
from blockyard.cluster.relief import Relieved, Yielded
from blockyard.cluster.served_request import (
    AskRequests,
    AskUnplaced,
    RequestsAnswer,
    UnplacedAnswer,
)
from blockyard.cluster.states.model_state import Became, Order, Ordered
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import RefusalCode, RequestSpec, RequestUpdate
from blockyard.scheduler.standing import Standing
from blockyard.scheduler.under_way import UnderWay
from blockyard.scheduler.yard_map import YardMap

__all__ = [
    "Abort",
    "Acknowledged",
    "ArrivalsAnswer",
    "AskArrivals",
    "AskGroups",
    "AskLedger",
    "AskYard",
    "Bind",
    "Bound",
    "Drain",
    "EngineToIngress",
    "Execute",
    "Executed",
    "GroupIdentity",
    "Groups",
    "IngressToEngine",
    "Join",
    "LedgerAnswer",
    "LedgerPush",
    "Lost",
    "Refused",
    "Release",
    "Resume",
    "Submit",
    "Submitted",
    "ToCentral",
    "ToIngress",
    "ToWorker",
    "Unbound",
    "Updates",
    "WorkerFailed",
    "WorkerToEngine",
    "YardAnswer",
]


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# --- engine to worker -----------------------------------------------------------------------------


class Execute(_Message, frozen=True):
    """Run this step."""

    plan: StepPlan


class Executed(_Message, frozen=True):
    """Rank 0's answer: the step is done on this rank, and these are its tokens."""

    result: StepResult


class Acknowledged(_Message, frozen=True):
    """A rank has finished this step and will not touch its blocks any more.

    Rank 0 says so of steps whose results came while blocks still moved.
    """

    step: int


class WorkerFailed(_Message, frozen=True):
    """This rank cannot go on; `message` is for the operator's log."""

    step: int
    message: str


ToWorker = Execute
WorkerToEngine = Executed | Acknowledged | WorkerFailed


# --- ingress to engine ----------------------------------------------------------------------------


class Submit(_Message, frozen=True):
    """Take this request. The answer names the ticket: a request id may be used again later."""

    ticket: int
    spec: RequestSpec


class Abort(_Message, frozen=True):
    """The client left or a stop string was found: free the blocks of a request, or of a choice."""

    request_id: str
    choice: int | None = None


class AskLedger(_Message, frozen=True):
    """Tell me your books as they stand; see `GroupBooks` for what is asked for by name."""

    ticket: int
    audit: bool = False
    memory: bool = False


class AskYard(_Message, frozen=True):
    """Draw me your pool in at most so many cells."""

    ticket: int
    max_cells: int


class AskArrivals(_Message, frozen=True):
    """Tell me of requests that have ended since a number; see `ArrivalLog.take`."""

    ticket: int
    after: int


class Submitted(_Message, frozen=True):
    """The request is in the queue; from here on `Updates` may tell of it.

    `max_tokens` is what fits, where the client did not name the most tokens of an answer.
    """

    ticket: int
    max_tokens: int | None = None


class Refused(_Message, frozen=True):
    """The request was not taken."""

    ticket: int
    code: RefusalCode
    message: str
    field: str = ""


class Updates(_Message, frozen=True):
    """News of all requests of this ingress since the last such message."""

    updates: tuple[RequestUpdate, ...]


class Lost(_Message, frozen=True):
    """The group is lost: every request taken from this ingress ends here, and so does the wire."""

    message: str


class LedgerAnswer(_Message, frozen=True):
    """The books, counted between two actions of the scheduler."""

    ticket: int
    books: GroupBooks


class ArrivalsAnswer(_Message, frozen=True):
    """Requests that have ended, up to a limit."""

    ticket: int
    batch: ArrivalBatch


class YardAnswer(_Message, frozen=True):
    """The picture, drawn between two actions of the scheduler."""

    ticket: int
    yard: YardMap


_Questions = AskLedger | AskYard | AskArrivals | AskRequests | Disturb
_Answers = LedgerAnswer | YardAnswer | ArrivalsAnswer | RequestsAnswer | Disturbed
IngressToEngine = Submit | Resume | Abort | _Questions
EngineToIngress = Submitted | Refused | Updates | Lost | Yielded | _Answers


# --- to and from the central scheduler ------------------------------------------------------------


class Join(_Message, frozen=True):
    """An engine is up and serves this group until the connection ends."""

    group: GroupIdentity
    ledger: GroupLedger
    draining: bool
    prefix_keys: tuple[bytes, ...] = ()
    """Blocks that can be found there now."""
    under_way: tuple[UnderWay, ...] = ()
    """What its tenants are to be charged for by who has not bound it."""


class LedgerPush(_Message, frozen=True):
    """An engine's books have changed, and so may have the blocks that can be found there."""

    ledger: GroupLedger
    draining: bool
    prefix_removed: tuple[bytes, ...] = ()
    prefix_stored: tuple[bytes, ...] = ()
    standing: Standing | None = None


class Drain(_Message, frozen=True):
    """Central to engine: stop admitting, finish what was admitted."""


class Bind(_Message, frozen=True):
    """An ingress wants a group for a request.

    `block_keys` are of the prompt's full blocks of `block_size`. `name` is what a client calls it,
    held until it is released or the ingress goes. `traceparent` is as in `RequestSpec`. `places`
    are those that it needs at once, `outputs` its fewest tokens. It came `waited` seconds ago, and
    its client stays for `seconds`. One that was `served` before does not queue here.
    """

    ticket: int
    model: str
    prompt_tokens: int
    block_keys: tuple[bytes, ...] = ()
    block_size: int = 0
    name: str = ""
    traceparent: str = ""
    request_id: str = ""
    priority: int = 0
    places: int = 1
    tenant: str = ""
    waited: float = 0.0
    seconds: float | None = None
    outputs: int = 1
    served: bool = False


class Release(_Message, frozen=True):
    """A request with this name has ended."""

    name: str


class Bound(_Message, frozen=True):
    """Use this group."""

    ticket: int
    group_id: str


class Unbound(_Message, frozen=True):
    """No group can take it, or its name is in use."""

    ticket: int
    code: RefusalCode
    message: str
    field: str = ""


class AskGroups(_Message, frozen=True):
    """Send the groups now, and again whenever they change. These names are held already."""

    names: tuple[str, ...] = ()


class Groups(_Message, frozen=True):
    """Every group that is up; those that are `leaving` finish what they have and take no more."""

    groups: tuple[GroupIdentity, ...]
    draining: bool
    leaving: tuple[str, ...] = ()


_FromEngine = Join | LedgerPush | Relieved | Became
_Found = AskUnplaced | UnplacedAnswer
_FromIngress = Bind | Release | AskGroups | AskCentralBooks | Order | _Found | FromWaiting
ToCentral = _FromEngine | _FromIngress
ToIngress = Bound | Unbound | Groups | CentralBooksAnswer | Ordered | _Found | ToWaiting
