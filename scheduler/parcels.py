"""A request's KV blocks on their way from one group to another, as the two schedulers have them.

The giver saves them in its host memory and lets the request go; they are a *parcel* then, and in
the giver's books until nobody reads them any more. The taker makes room for those that it lacks in
its own host memory, and the request waits; when they are there they are the request's, as if it had
been swapped out here. What does not come is computed again. Each side's blocks are in its own books
all the time. Knows no wires. Units: blocks, tokens.
"""

from dataclasses import dataclass, field, replace
from hashlib import blake2b

from blockyard.scheduler.block_keys import PrefixExtras, pack_token_ids, root_key
from blockyard.scheduler.move_cost import LinkModel, bring_seconds, is_worth_bringing
from blockyard.scheduler.request import Request, RequestState
from blockyard.scheduler.scheduler import Scheduler

__all__ = ["Expected", "Parcel", "consign", "expect", "go_on_without", "take_delivery"]

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Parcel:
    """What a giver has of a request.

    Attributes:
        key: names it; who knows the key may have the blocks.
        num_tokens: computed tokens in it, the request's first ones.
        block_size: token slots in a block.
        digest: of those tokens and all else that decides their KV.
    """

    key: bytes = field(repr=False)
    num_tokens: int
    block_size: int
    digest: bytes

    @property
    def num_blocks(self) -> int:
        """Blocks in it."""
        return -(-self.num_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a taker waits for.

    Attributes:
        member: the choice that it is for.
        parcel: as it was told of.
        first: number of the parcel's first block that is wanted; those before are here.
        host_ids: blocks that the others are to be written to, in their order.
        estimated_seconds: until they are on the device.
    """

    member: Request
    parcel: Parcel
    first: int
    host_ids: tuple[int, ...]
    estimated_seconds: float

    def tokens_in(self, num_blocks: int) -> int:
        """Computed tokens in the first so many of the blocks that are wanted."""
        size = self.parcel.block_size
        end = min(self.parcel.num_tokens, (self.first + num_blocks) * size)
        return max(0, end - self.first * size)


def consign(scheduler: Scheduler, request_id: str, key: bytes, link: LinkModel) -> Parcel | None:
    """Make a parcel of what a request has computed; whoever calls lets go of the request at once.

    The next plan saves what is on the device. A step in flight may go on behind what is saved; what
    it samples is sampled again.

    Args:
        scheduler: of the giver.
        request_id: a request that is served.
        key: for the parcel.
        link: the wire to others, as it is known.

    Returns:
        None when there is nothing to send, no room to save it in, or when it is cheaper to compute
        it again.
    """
    members = scheduler.roster.members(request_id)
    if len(members) != 1 or members[0].sampling.searches or members[0].expects:
        return None
    (request,) = members
    host, size = scheduler.batch.parking.host, scheduler.config.block_size
    table = request.table.block_ids[: -(-request.num_computed // size)]
    if request.state is RequestState.RUNNING:
        num_tokens = request.num_computed
    else:
        num_tokens = request.num_saved
        if request.host_ids and request.host_start != len(table):
            host.drop(request)
    num_blocks = len(table) + len(request.host_ids)
    num_tokens = min(num_tokens, num_blocks * size)
    rates = scheduler.batch.parking.rates.model()
    if not is_worth_bringing(rates, link, num_blocks, num_tokens):
        return None
    if table and not host.save(request, 0, table):
        return None
    num_blocks = host.consign(key, request)
    num_tokens = min(num_tokens, num_blocks * size)
    digest = _digest(scheduler, request, num_tokens)
    return Parcel(key, num_tokens, size, digest)


def expect(
    scheduler: Scheduler, request_id: str, parcel: Parcel, link: LinkModel
) -> Expected | None:
    """Let a request that has just been taken in wait for its blocks; None: it need not.

    It is not its turn until `take_delivery` or `go_on_without`.

    Args:
        scheduler: of the taker.
        request_id: the request; it is queued and has computed nothing here.
        parcel: its blocks.
        link: the wire from the giver.
    """
    batch, size = scheduler.batch, scheduler.config.block_size
    members = scheduler.roster.members(request_id)
    if len(members) != 1 or members[0].sampling.searches or parcel.block_size != size:
        return None
    (request,) = members
    num_tokens = parcel.num_tokens
    if not 0 < num_tokens < len(request.tokens) or not _is_scored(request, num_tokens):
        return None
    if parcel.digest != _digest(scheduler, request, num_tokens):
        return None
    batch.cache.match(request)
    first = len(request.path)
    missing, lacking = parcel.num_blocks - first, num_tokens - first * size
    rates = batch.parking.rates.model()
    if missing < 1 or not is_worth_bringing(rates, link, missing, lacking):
        return None
    if batch.queue.remove(*request.member) is None:
        return None
    host_ids = batch.parking.host.await_parcel(parcel.key, missing)
    request.held = request.expects = host_ids is not None
    batch.queue.push(request)
    if host_ids is None:
        return None
    return Expected(request, parcel, first, host_ids, bring_seconds(rates, link, missing))


def take_delivery(scheduler: Scheduler, expected: Expected, num_blocks: int) -> int:
    """Give a request the first so many of the blocks that it waits for; no rank writes any more.

    Nothing is given to one that has ended meanwhile.

    Returns:
        Computed tokens that it need not compute again.
    """
    batch, request = scheduler.batch, expected.member
    host, key = batch.parking.host, expected.parcel.key
    tokens = expected.tokens_in(num_blocks)
    if not tokens or request.state is RequestState.FINISHED:
        go_on_without(scheduler, expected)
        return 0
    batch.queue.remove(*request.member)
    host.hand_over(key, request, expected.first, num_blocks)
    request.num_brought = tokens
    request.num_saved = expected.first * expected.parcel.block_size + tokens
    request.state = RequestState.PARKED
    _queue_up(scheduler, request)
    return tokens


def go_on_without(scheduler: Scheduler, expected: Expected) -> None:
    """Let a request compute again what it was to get; no rank writes to its blocks any more."""
    batch, request = scheduler.batch, expected.member
    batch.parking.host.discard(expected.parcel.key)
    if request.state is not RequestState.FINISHED:
        batch.queue.remove(*request.member)
        _queue_up(scheduler, request)


def _queue_up(scheduler: Scheduler, request: Request) -> None:
    request.held = request.expects = False
    scheduler.batch.queue.push(request)


def _is_scored(request: Request, num_tokens: int) -> bool:
    """Whether its client was told how likely those tokens of its prompt were, if it wants to know.

    Nobody could say it of tokens that are not computed here.
    """
    if request.sampling.prompt_logprobs is None:
        return True
    return request.num_scored >= min(num_tokens, request.num_prompt - 1)


def _digest(scheduler: Scheduler, request: Request, num_tokens: int) -> bytes:
    """Of all that decides the KV of a request's first tokens, under the weights of this group."""
    extras: PrefixExtras = request.spec.extras
    version = scheduler.config.weight_version
    if extras.weight_version != version:
        extras = replace(extras, weight_version=version)
    digest = blake2b(root_key(extras), digest_size=_DIGEST_BYTES, person=b"blockyard.parcel")
    digest.update(pack_token_ids(request.tokens[:num_tokens]))
    return digest.digest()
