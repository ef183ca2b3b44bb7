"""Everybody who is served: requests by id, and each of their choices until it ends.

Starts nobody and plans nothing; an end goes through here, whatever state the member is in. A
member is one choice of a request. Units: tokens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.beam_search import BeamSearch
from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.endings import reason_to_end
from blockyard.scheduler.request import FinishReason, Request, RequestSpec, RequestState
from blockyard.scheduler.search_round import SearchRound
from blockyard.scheduler.snapshot import ALONE, ChoiceSnapshot, RequestSnapshot, take_snapshot

__all__ = ["Roster"]


class Roster:
    """Members of requests that have not ended."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._members: dict[str, list[Request]] = {}
        # Numbers given to choices beyond those that a request came with; never given again.
        self._extra_choices: dict[str, set[int]] = {}
        self._next_sequence = 0
        self.searches: dict[str, SearchRound] = {}
        """Requests whose answers are searched for."""

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Requests that are served, in the order in which they came."""
        return tuple(self._members)

    def __len__(self) -> int:
        """Requests of which some choice has not ended."""
        return len(self._members)

    def __contains__(self, request_id: object) -> bool:
        """Whether a request is served."""
        return request_id in self._members

    def __iter__(self) -> Iterator[Request]:
        """Every member, in no particular order."""
        return (member for members in self._members.values() for member in members)

    def members(self, request_id: str) -> tuple[Request, ...]:
        """The choices of a request that have not ended; none when it is not served."""
        return tuple(self._members.get(request_id, ()))

    def make(
        self,
        spec: RequestSpec,
        max_tokens: int,
        arrived_at: float,
        choice: ChoiceSnapshot | None = None,
        packed: bytes = b"",
    ) -> Request:
        """The one member with which a request begins, or one choice of a request that goes on.

        The first forks when its prompt is computed. `packed` is the prompt, if it is at hand so.
        """
        if choice is None:
            alone = spec.num_choices == 1 or spec.sampling.searches
            choice = ALONE if alone else ChoiceSnapshot(begins=tuple(range(1, spec.num_choices)))
        request = Request(
            spec=spec,
            sequence=self._next_sequence,
            max_tokens=max_tokens,
            table=BlockTable(self._batch.config.block_size),
            arrived_at=arrived_at,
            choice=choice.choice,
            tokens=[*spec.prompt_token_ids, *choice.token_ids],
            pending_forks=list(choice.begins),
            num_scored=choice.num_scored,
        )
        self._batch.cache.join(request, packed)
        return request

    def add(self, request: Request) -> None:
        """Serve the request just made."""
        self._next_sequence += 1
        self._members[request.request_id] = [request]
        if request.sampling.searches:
            self._search(request, range(request.spec.num_choices))
        self._batch.queue.push(request)

    def snapshot(self, request_id: str, now: float) -> RequestSnapshot | None:
        """A request's value; None when it is not served.

        A search begins anew from its value, and finds the same.
        """
        members = self._members.get(request_id)
        extra = self._extra_choices.get(request_id, ())
        taken = take_snapshot(members, extra, now) if members else None
        if taken is None or request_id not in self.searches:
            return taken
        first, *others = sorted(self.searches[request_id].wanted)
        scored = max(choice.num_scored for choice in taken.choices)
        return replace(taken, choices=(ChoiceSnapshot(first, (), tuple(others), scored),))

    def resume(self, snapshot: RequestSnapshot, now: float) -> list[Request]:
        """Serve a request from its value: its choices wait, and have computed nothing here."""
        spec = snapshot.spec
        members = []
        choices = snapshot.choices
        if spec.sampling.searches:
            choices = (ChoiceSnapshot(num_scored=min(c.num_scored for c in choices)),)
        for choice in choices:
            member = self.make(spec, snapshot.max_tokens, now - snapshot.age_seconds, choice)
            # All but the newest token were computed elsewhere, if any was produced.
            member.num_lost = len(member.tokens) - 1 if choice.token_ids else 0
            members.append(member)
        self._next_sequence += 1
        self._members[spec.request_id] = members
        if snapshot.extra_choices:
            self._extra_choices[spec.request_id] = set(snapshot.extra_choices)
        if spec.sampling.searches:
            self._search(members[0], snapshot.numbers)
        for member in members:
            self._batch.queue.push(member)
        return members

    def abort(self, request_id: str, choice: int | None) -> bool:
        """End a request, or one of its choices, in whatever state; False when it is not served.

        Who is to begin others goes on until they have begun, but its own answer ends now.
        """
        members = self.members(request_id)
        search = self.searches.get(request_id)
        if search is not None and choice is not None:
            if choice not in search.wanted:
                return False
            search.wanted.remove(choice)
            if search.wanted:
                return True
            choice = None
        if choice is None:
            for member in members:
                self.end(member, FinishReason.ABORT)
            return bool(members)
        for member in members:
            if choice in member.pending_forks:
                self._batch.drop_fork(member, choice)
                if member.forgone and not member.pending_forks:
                    self.end(member, FinishReason.ABORT)
                return True
            if member.choice == choice and not member.forgone:
                member.forgone = True
                if not member.pending_forks:
                    self.end(member, FinishReason.ABORT)
                return True
        return False

    def want_fork(self, request_id: str, choice: int, new_choice: int) -> bool:
        """Let a running choice begin a new one when it samples next; False when it cannot."""
        parent = self._parent(request_id, choice, new_choice)
        if parent is None or not self._batch.want_fork(parent, new_choice):
            return False
        self._extra_choices.setdefault(request_id, set()).add(new_choice)
        return True

    def branch(self, request_id: str, choice: int, new_choice: int, token: int) -> bool:
        """Begin a choice with a running one's tokens, but `token` for its newest; False if not."""
        parent = self._parent(request_id, choice, new_choice)
        if parent is None or not parent.num_output or not self._batch.num_places_left:
            return False
        child = self._child(parent, new_choice)
        child.tokens[-1] = token
        if reason_to_end(child, token) is not None:
            return False
        self._extra_choices.setdefault(request_id, set()).add(new_choice)
        self._begin_branch(parent, child)
        return True

    def fork(self, parent: Request, choice: int, handle: int) -> Request:
        """A new member with all that its running parent has, known to the workers by `handle`.

        It has the place that its parent kept for it.
        """
        child = self._child(parent, choice)
        child.handle = handle
        self._members[parent.request_id].append(child)
        self._batch.fork(parent, child)
        return child

    def retire(self, request: Request) -> None:
        """End a choice that went on for others alone, before it samples again.

        Those that its last step did not begin do so with what has been told of it.
        """
        for choice in tuple(request.pending_forks):
            self._batch.drop_fork(request, choice)
            self._begin_branch(request, self._child(request, choice))
        self.end(request, FinishReason.ABORT)

    def follow(self, parent: Request, choice: int, token: int) -> Request:
        """A new choice that has all tokens of a held one, and `token` after them.

        It shares the blocks of its parent if that runs and there is a place, or it is parked.
        """
        child = self._child(parent, choice)
        child.tokens.append(token)
        if parent.state is RequestState.RUNNING and self._batch.num_places_left:
            self._begin_branch(parent, child)
            return child
        child.branched = True
        child.state = RequestState.PARKED
        child.num_lost = len(parent.tokens)
        self._batch.cache.join(child)
        self._members[parent.request_id].append(child)
        self._batch.queue.push(child)
        return child

    def go_on(self, request: Request, token: int) -> None:
        """Let a held choice go on with `token`."""
        waits = self._batch.queue.remove(*request.member)
        request.held = False
        request.tokens.append(token)
        if waits is not None:
            self._batch.queue.push(request)

    def let_go(self, request: Request) -> None:
        """Take a choice of a search off the books that does not go on; the request does."""
        if request.state is not RequestState.RUNNING:
            self._batch.remove_waiting(request)
        self._leave(request, FinishReason.ABORT)

    def end_search(self, request_id: str, reason: FinishReason) -> None:
        """Take all choices of a search off the books."""
        for member in self.members(request_id):
            self.end(member, reason)

    def end(self, request: Request, reason: FinishReason) -> None:
        """Take a member off the books, wherever it is."""
        if request.state is RequestState.RUNNING:
            self._batch.watermark.observe(0, 1)
        else:
            self._batch.remove_waiting(request)
        self._leave(request, reason)

    def _leave(self, request: Request, reason: FinishReason) -> None:
        self._batch.leave(request)
        members = self._members[request.request_id]
        members.remove(request)
        if not members:
            del self._members[request.request_id]
            self._extra_choices.pop(request.request_id, None)
            self.searches.pop(request.request_id, None)
        request.state = RequestState.FINISHED
        request.finish_reason = reason

    def _parent(self, request_id: str, choice: int, new_choice: int) -> Request | None:
        """The running member that may begin `new_choice`, a number never used in its request."""
        if request_id in self.searches:
            return None
        for member in self._members.get(request_id, ()):
            used = self._extra_choices.get(request_id, ())
            if new_choice < member.spec.num_choices or new_choice in used:
                return None
            if member.choice == choice and not member.forgone:
                return member if member.state is RequestState.RUNNING else None
        return None

    def _search(self, request: Request, wanted: Iterable[int]) -> None:
        search = BeamSearch(request.sampling, request.max_tokens)
        self.searches[request.request_id] = SearchRound(search, [request], set(wanted))

    def _begin_branch(self, parent: Request, child: Request) -> None:
        """Serve a choice that begins between two steps, with what its parent has of its tokens."""
        child.branched = True
        self._batch.fall_out(parent)
        self._members[parent.request_id].append(child)
        self._batch.holdings.branch(parent, child)
        self._batch.cache.branch(parent, child)
        self._batch.start(child)

    def _child(self, parent: Request, choice: int) -> Request:
        child = Request(
            spec=parent.spec,
            sequence=parent.sequence,
            max_tokens=parent.max_tokens,
            table=BlockTable(parent.table.block_size),
            arrived_at=parent.arrived_at,
            choice=choice,
            tokens=list(parent.tokens),
            num_preemptions=parent.num_preemptions,
            cached_tokens=parent.cached_tokens,
            started_at=parent.started_at,
            first_token_at=parent.first_token_at,
            # What the model thought of the prompt is told with the first choice.
            num_scored=parent.num_prompt,
        )
        child.last_step = parent.last_step
        return child
