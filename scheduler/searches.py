"""Requests whose answers are searched for: each beam is a choice that computes one token a round.

A choice that has sampled is *held* until all others of its search have: then the search says which
of them go on, with which token. A beam that goes on more than once forks, and its children share
its blocks; one that does not go on lets go of its own. Clients are told at the end.

A held choice keeps its place and its blocks, unless somebody needs them: what it has found is
known. One that has lost them comes back when the round is over and it goes on. So a search of any
width ends in a pool that holds but one of its beams, slower. Units: tokens.
"""

from collections.abc import Mapping, Sequence

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.beam_search import Branch
from blockyard.scheduler.endings import last_update
from blockyard.scheduler.request import FinishReason, Request, RequestUpdate
from blockyard.scheduler.roster import Roster
from blockyard.scheduler.search_round import SearchRound

__all__ = ["check_searches", "give_way", "settle_searches"]


def settle_searches(
    roster: Roster, updates: Sequence[RequestUpdate], now: float
) -> list[RequestUpdate]:
    """The news of a step without what searches have found; with their answers if they ended.

    Args:
        roster: everybody served.
        updates: the news. One that ends a choice of a search is that of a failure, whose choice is
            off the roster already.
        now: seconds.
    """
    told: list[RequestUpdate] = []
    touched: dict[str, SearchRound] = {}
    failed: dict[str, RequestUpdate] = {}
    for update in updates:
        found = roster.searches.get(update.request_id)
        if found is None:
            told.append(update)
            continue
        touched[update.request_id] = found
        if update.prompt_logprobs:
            scores, first = update.prompt_logprobs, min(found.wanted)
            told.append(RequestUpdate(update.request_id, (), choice=first, prompt_logprobs=scores))
        if update.finish_reason is not None:
            failed[update.request_id] = update
        elif update.token_ids:
            found.found[update.choice] = update.logprobs[0]
    for request_id, found in touched.items():
        if request_id in failed:
            roster.end_search(request_id, FinishReason.ERROR)
            last = failed[request_id]._replace(prompt_logprobs=())
            told += [last._replace(choice=choice) for choice in sorted(found.wanted)]
        elif found.is_complete:
            told += _next_round(roster, request_id, found, now)
    return told


def give_way(batch: Batch) -> bool:
    """Let the least urgent held choice lose its place, for when nothing else can be computed.

    Returns:
        False when none is held.
    """
    held = next((request for request in reversed(batch.running) if request.held), None)
    if held is None:
        return False
    batch.preempt(held, 0)
    return True


def check_searches(roster: Roster) -> None:
    """Prove that each search has its members, and that those are held that have found something.

    Raises:
        AssertionError: naming the request.
    """
    for request_id, own in roster.searches.items():
        if set(own.members) != set(roster.members(request_id)):
            raise AssertionError(f"request {request_id!r} has other choices than its search")
        if {member.choice for member in own.members if member.held} != own.found.keys():
            raise AssertionError(
                f"request {request_id!r}: choices {sorted(own.found)} have found what follows, "
                "others are held"
            )
    for member in roster:
        if member.held and member.request_id not in roster.searches and not member.expects:
            raise AssertionError(f"request {member.request_id!r} is held and searches nothing")


def _next_round(
    roster: Roster, request_id: str, own: SearchRound, now: float
) -> list[RequestUpdate]:
    """Let those beams go on that are to; what clients are told if none is."""
    branches = own.search.advance([own.found[member.choice] for member in own.members])
    if branches:
        own.found.clear()
        own.members = _go_on(roster, own.members, branches)
        return []
    slowest = max(own.members, key=lambda member: member.num_preemptions)
    roster.end_search(request_id, FinishReason.ABORT)
    last = last_update(slowest, now, ())
    scored = slowest.sampling.logprobs is not None
    return [
        last._replace(
            token_ids=answer.token_ids,
            finish_reason=answer.finish_reason,
            choice=place,
            logprobs=answer.logprobs if scored else (),
        )
        for place, answer in enumerate(own.search.best())
        if place in own.wanted
    ]


def _go_on(roster: Roster, members: Sequence[Request], branches: Sequence[Branch]) -> list[Request]:
    """Who computes for each beam of the next round.

    The first that continues a beam takes over its choice; the others take the numbers, and if they
    can the places, of those that do not go on.
    """
    continued: dict[int, list[int]] = {}
    for place, branch in enumerate(branches):
        continued.setdefault(branch.beam, []).append(place)
    for beam, member in enumerate(members):
        if beam not in continued:
            roster.let_go(member)
    kept = {members[beam].choice for beam in continued}
    numbers = iter([number for number in range(len(members) + len(branches)) if number not in kept])
    following: dict[int, Request] = {}
    for beam, (first, *others) in continued.items():
        member = members[beam]
        for place in others:
            following[place] = roster.follow(member, next(numbers), branches[place].token_id)
        roster.go_on(member, branches[first].token_id)
        following[first] = member
    return _in_order(following)


def _in_order(following: Mapping[int, Request]) -> list[Request]:
    return [following[place] for place in sorted(following)]
