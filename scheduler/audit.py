"""The invariants of requests, restated in words and proved against the owners' counters.

Slow on purpose: everything is counted anew. Called after every step in tests, and on demand.
Each function raises AssertionError naming the request or the block.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from blockyard.scheduler.ledger import SlotCounts
from blockyard.scheduler.request import Request, RequestState

__all__ = ["check_slots", "check_states", "check_tables"]


def check_states(
    running: Sequence[Request],
    queued: Collection[Request],
    live: Collection[Request],
    max_running: int,
    num_places: int,
) -> None:
    """Every member served is running or queued, once; no more run, or will, than may."""
    places = sum(1 + len(request.pending_forks) for request in running)
    if not places == num_places <= max_running:
        raise AssertionError(f"{places} places are taken, {num_places} counted, {max_running} may")
    for before, after in pairwise(running):
        if before.urgency >= after.urgency:
            raise AssertionError(
                f"request {before.request_id!r} runs ahead of the more urgent {after.request_id!r}"
            )
    for request in running:
        if request.state is not RequestState.RUNNING:
            raise AssertionError(f"request {request.request_id!r} runs but is {request.state}")
        if request.handle is None and request.table.block_ids and not request.is_returning:
            raise AssertionError(f"request {request.request_id!r} holds blocks without a handle")
    for request in queued:
        held = (request.table.block_ids, request.num_computed, request.host_ids)
        if request.handle is not None or request.num_promised:
            raise AssertionError(f"request {request.request_id!r} waits and is still in a step")
        if any(held) and request.state is not RequestState.PARKED:
            raise AssertionError(f"request {request.request_id!r} waits and still holds {held}")
    handles = Counter(request.handle for request in running if request.handle is not None)
    for handle, count in handles.items():
        if count > 1:
            raise AssertionError(f"handle {handle} names {count} requests")
    placed = Counter(request.member for request in (*running, *queued))
    served = {request.member for request in live}
    for (request_id, choice), count in placed.items():
        if count > 1 or (request_id, choice) not in served:
            raise AssertionError(
                f"request {request_id!r} (choice {choice}) is placed {count} times or has ended"
            )
    for request_id, choice in served:
        if (request_id, choice) not in placed:
            raise AssertionError(
                f"request {request_id!r} (choice {choice}) is lost: neither running nor queued"
            )


def check_tables(holding: Sequence[Request], held: Mapping[int, int]) -> None:
    """A block's references are the tables that name it; no table is longer than needed."""
    named: Counter[int] = Counter()
    for request in holding:
        table = request.table
        if len(set(table.block_ids)) != len(table.block_ids):
            raise AssertionError(f"request {request.request_id!r} names a block twice")
        named.update(table.block_ids)
        used = request.num_planned
        if not 0 <= table.num_slots - used < table.block_size:
            raise AssertionError(
                f"request {request.request_id!r} holds {table.num_slots} slots for {used} tokens"
            )
    for block_id in named.keys() | held.keys():
        if named[block_id] != held.get(block_id, 0):
            raise AssertionError(
                f"block {block_id} has {held.get(block_id, 0)} references, "
                f"{named[block_id]} tables name it"
            )


def check_slots(
    holding: Sequence[Request],
    in_flight: Sequence[tuple[Request, int, int]],
    counted: SlotCounts,
    logical: int,
) -> None:
    """Computed tokens are known ones, promises belong to the steps in flight, counters agree."""
    rows: dict[int, list[int]] = {}
    guessed: Counter[int] = Counter()
    for request, count, guesses in in_flight:
        rows.setdefault(id(request), []).append(count)
        guessed[id(request)] += guesses
    filled: dict[int, int] = {}
    for request in holding:
        counts = rows.get(id(request), ())
        if request.num_promised != sum(counts):
            raise AssertionError(
                f"request {request.request_id!r} was promised {request.num_promised} tokens, "
                f"the steps in flight compute {sum(counts)}"
            )
        # Each step in flight but the last may make one more token known to the next.
        known = len(request.tokens) + max(0, len(counts) - 1) + guessed[id(request)]
        if request.num_planned > known:
            raise AssertionError(
                f"request {request.request_id!r} computed {request.num_computed} and was promised "
                f"{request.num_promised} of {len(request.tokens)} known tokens"
            )
        if request.num_output >= request.max_tokens:
            raise AssertionError(
                f"request {request.request_id!r} runs on after {request.num_output} tokens"
            )
        size = request.table.block_size
        for index, block_id in enumerate(request.table.block_ids):
            tokens = min(max(request.num_computed - index * size, 0), size)
            if filled.setdefault(block_id, tokens) != tokens:
                raise AssertionError(
                    f"request {request.request_id!r} has {tokens} tokens in block {block_id}, "
                    f"another that shares it {filled[block_id]}"
                )
    promised = sum(request.num_promised for request in holding)
    if (sum(filled.values()), promised) != (counted.filled, counted.promised):
        raise AssertionError(
            f"{counted.filled} slots are counted as filled and {counted.promised} as promised; "
            f"requests hold {sum(filled.values())} and {promised}"
        )
    if sum(request.num_computed for request in holding) != logical:
        raise AssertionError(f"{logical} tokens are counted as held by requests, wrongly")
