"""Gives requests a group: at once where one can start them, else when one soon can.

The central scheduler's side. When every group is full requests wait here, in one queue for each
model, and each is told its group only when that one's own queue is short: so the next place
anywhere goes to whose turn it is, wherever the place is. Where all groups rest, and if they were
served before, requests wait at a group. Units: tokens, seconds.
"""

import asyncio
from collections.abc import Callable

from blockyard.cluster.binding.bind_refusals import no_group
from blockyard.cluster.binding.waiting_line import AskingIngress, Waiter, WaitingLine
from blockyard.cluster.binding.waiting_messages import AskPlaces, Places, Queued, Spent
from blockyard.cluster.books.waiting_counts import WaitingCounts
from blockyard.cluster.member import BINDING_SECONDS, Member
from blockyard.cluster.messages import Bind, Bound, Join, Unbound
from blockyard.cluster.preempter import Preempter
from blockyard.cluster.tracing import NO_TRACER, Tracer
from blockyard.scheduler.global_queue import GlobalQueue
from blockyard.scheduler.placement import choose_group
from blockyard.scheduler.request import RefusalCode, RequestRefused
from blockyard.scheduler.standing import Waiting

__all__ = ["LateBinder"]

TICK_SECONDS = 0.25
"""While anybody waits it is looked so often for what no message tells: that time has passed."""


class LateBinder:
    """Binds the requests of all models to `members`, groups by id.

    Args:
        members: those that have joined; their owner says when they have changed.
        preempter: decides who gives way to the more urgent.
        clock: seconds.
        tracer: told how long bindings took.
    """

    def __init__(
        self,
        members: dict[str, Member],
        preempter: Preempter,
        clock: Callable[[], float],
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._members = members
        self._preempter = preempter
        self._clock = clock
        self._tracer = tracer
        self._lines: dict[str, WaitingLine] = {}
        self._waiting: dict[tuple[AskingIngress, int], Waiter] = {}
        # Groups that were given something which their books do not tell of, and when.
        self._given: dict[str, float] = {}
        self._tick: asyncio.TimerHandle | None = None
        self._bound = self._bound_late = self._shed = self._too_late = 0
        self._waited_seconds = 0.0

    def __len__(self) -> int:
        """So many wait."""
        return len(self._waiting)

    def load(self, model: str) -> tuple[int, int]:
        """Requests of a model that wait here, and tokens known of them."""
        known = self._lines.get(model)
        return (len(known.queue), known.queue.num_tokens) if known is not None else (0, 0)

    def counts(self) -> WaitingCounts:
        """The books, of all models together."""
        queues = [line.queue for line in self._lines.values()]
        oldest = min((at for q in queues if (at := q.oldest_at()) is not None), default=None)
        return WaitingCounts(
            len(self._waiting),
            sum(queue.num_tokens for queue in queues),
            max(0.0, self._clock() - oldest) if oldest is not None else 0.0,
            self._bound,
            self._bound_late,
            self._waited_seconds,
            self._shed,
            self._too_late,
        )

    def joined(self, join: Join) -> None:
        """A group comes, perhaps from a central scheduler that is no more."""
        new = WaitingLine(GlobalQueue(self._clock()))
        self._lines.setdefault(join.group.model.name, new).take_over(join)

    def groups_changed(self) -> None:
        """Groups have come, gone, fallen asleep or woken up."""
        of_models: dict[str, list[Member]] = {name: [] for name in self._lines}
        for member in self._members.values():
            of_models[member.identity.model.name].append(member)
            member.changed = self._note
        for name, members in of_models.items():
            self._lines[name].take_groups(members)
            self._go_on(self._lines[name])

    def took_books(self, member: Member) -> None:
        """A group's books have come."""
        line = self._lines[member.identity.model.name]
        line.took_books(member)
        self._go_on(line)

    def ask(self, ingress: AskingIngress, bind: Bind) -> None:
        """An ingress wants a group for a request: it is answered, or told first that it waits."""
        now = self._clock()
        self._forget_given(now)
        span = self._tracer.begin("bind", bind.traceparent) if bind.traceparent else None
        waiter = Waiter.of(ingress, bind, now, span)
        line = self._lines.get(bind.model)
        if line is None or not (len(line.board) or line.resting):
            self._refuse(waiter, no_group(bind.model))
        elif bind.served or not len(line.board):
            self._bind_anywhere(line, waiter)
        elif len(line.queue) or not self._try(line, waiter):
            self._enter(line, waiter, now)

    def withdraw(self, ingress: AskingIngress, ticket: int) -> None:
        """A request is not wanted any more; it may have a group by now."""
        waiter = self._waiting.get((ingress, ticket))
        if waiter is not None:
            self._end(waiter, refused="withdrawn")

    def left(self, ingress: AskingIngress) -> None:
        """A connection has ended, perhaps an ingress's: nobody waits for its requests."""
        for asker, ticket in [key for key in self._waiting if key[0] is ingress]:
            self.withdraw(asker, ticket)

    def spent(self, told: Spent) -> None:
        """Tokens were produced for a tenant."""
        line = self._lines.get(told.model)
        if line is not None:
            line.queue.charge(told.priority, told.tenant, 0, max(0, told.tokens))

    def tell_places(self, ingress: AskingIngress, asked: AskPlaces) -> None:
        """Where an ingress's requests stand in their queues."""
        waiting = {ticket: self._waiting.get((ingress, ticket)) for ticket in asked.tickets}
        places = {
            ticket: self._lines[waiter.bind.model].queue.place_of(waiter)
            for ticket, waiter in waiting.items()
            if waiter is not None
        }
        ingress.post(Places(asked.ticket, places))

    def has_settled(self) -> bool:
        """Whether nobody waits and all that was bound is in the books of its group."""
        self._forget_given(self._clock())
        members = map(self._members.get, self._given)
        return not self._waiting and not any(one.has_bound for one in members if one is not None)

    def close(self) -> None:
        """Look at the clock no more."""
        if self._tick is not None:
            self._tick.cancel()

    def check(self) -> None:
        """Prove that whoever waits is in a queue, and that boards are in order."""
        for line in self._lines.values():
            line.queue.check()
            line.board.check()
        if sum(len(line.queue) for line in self._lines.values()) != len(self._waiting):
            raise AssertionError("somebody waits in a queue whom nobody knows")
        if not all(waiter.waits for waiter in self._waiting.values()):
            raise AssertionError("somebody is known to wait who is in no queue")

    def _note(self, member: Member) -> None:
        group_id = member.candidate.group_id
        if self._members.get(group_id) is not member:
            return  # it has left
        self._lines[member.identity.model.name].note(member)
        if member.has_bound:
            self._given.setdefault(group_id, self._clock())

    def _go_on(self, line: WaitingLine) -> None:
        """Bind whose turn it is, as far as there are groups for them."""
        while (waiter := line.queue.head()) is not None:
            if len(line.board):
                if not self._try(line, waiter):
                    return
            elif line.resting:
                self._bind_anywhere(line, waiter)
            else:
                self._refuse(waiter, no_group(waiter.bind.model))

    def _try(self, line: WaitingLine, waiter: Waiter) -> bool:
        """Bind a request if a group can start it now, or soon; whether it was."""
        found = line.board.starting(waiter)
        if found is None and waiter.priority > line.board.least_urgent:
            made = self._make_way(line, waiter)
            if made is not None:
                self._give(line, waiter, made, waiter.tokens)
                return True
        waits = found is None
        found = found or line.board.feeding(waiter)
        if found is None:
            return False
        group, known = found
        member = self._members[group.candidate.group_id]
        tokens = max(0, waiter.tokens - known * waiter.block_size)
        member.bind(tokens, self._clock(), waiter.places, waits)
        self._give(line, waiter, member.candidate.group_id, tokens)
        return True

    def _make_way(self, line: WaitingLine, waiter: Waiter) -> str | None:
        candidates = [
            self._members[group.candidate.group_id].candidate_for(waiter.bind)
            for group in line.board
        ]
        needy = Waiting(waiter.request_id, waiter.priority, waiter.tokens, waiter.places)
        return self._preempter.place(needy, candidates, self._members)

    def _bind_anywhere(self, line: WaitingLine, waiter: Waiter) -> None:
        """Bind one that does not wait here."""
        found = line.board.best(waiter)
        if found is not None:
            group_id = found[0].candidate.group_id
        else:
            chosen = choose_group([m.candidate for m in line.resting.values()], waiter.tokens)
            assert chosen is not None  # one of them rests
            group_id = chosen
        self._members[group_id].bind(waiter.tokens, self._clock())
        self._give(line, waiter, group_id, waiter.tokens)

    def _give(self, line: WaitingLine, waiter: Waiter, group_id: str, tokens: int) -> None:
        """Tell an ingress its group, which has to compute so many tokens."""
        if not waiter.waits:
            line.queue.pass_by(waiter)
        line.queue.charge(waiter.priority, waiter.tenant, tokens, 0)
        self._bound += 1
        if waiter.waits:
            self._bound_late += 1
            self._waited_seconds += self._clock() - waiter.arrived_at
        waiter.ingress.post(Bound(waiter.bind.ticket, group_id))
        self._end(waiter, group=group_id)

    def _enter(self, line: WaitingLine, waiter: Waiter, now: float) -> None:
        """Have a request wait here."""
        try:
            sheds = line.enter(waiter, now)
        except RequestRefused as refusal:
            self._too_late += 1
            self._refuse(waiter, refusal)
            return
        if sheds is not None:
            self._shed += 1
            self._refuse(sheds, RequestRefused(RefusalCode.EXHAUSTED, line.shed_message()))
        if sheds is waiter:
            return
        self._waiting[waiter.ingress, waiter.bind.ticket] = waiter
        waiter.ingress.post(Queued(waiter.bind.ticket))
        if line.queue.head() is waiter:
            self._go_on(line)
        self._look_again()

    def _refuse(self, waiter: Waiter, refusal: RequestRefused) -> None:
        code, message, field = refusal.code, refusal.message, refusal.field
        waiter.ingress.post(Unbound(waiter.bind.ticket, code, message, field))
        self._end(waiter, refused=code.value)

    def _end(self, waiter: Waiter, **told: str) -> None:
        """A request waits here no more."""
        key = waiter.ingress, waiter.bind.ticket
        if self._waiting.get(key) is waiter:
            del self._waiting[key]
        if waiter.waits:
            self._lines[waiter.bind.model].queue.remove(waiter)
        if waiter.span is not None:
            waiter.span.set(**told)
            waiter.span.end()

    def _forget_given(self, now: float) -> None:
        """What was given to a group so long ago, and is not in its books, never got there."""
        while self._given:
            group_id, given_at = next(iter(self._given.items()))
            if now - given_at <= BINDING_SECONDS:
                return
            del self._given[group_id]
            member = self._members.get(group_id)
            if member is not None:
                member.forget_bound(now)
                if member.has_bound:  # it was given more since
                    self._given[group_id] = member.bound_at

    def _look_again(self) -> None:
        """Look at the clock in a while, if anybody waits and nobody does so already."""
        if self._waiting and self._tick is None:
            self._tick = asyncio.get_running_loop().call_later(TICK_SECONDS, self._look)

    def _look(self) -> None:
        self._tick = None
        now = self._clock()
        self._forget_given(now)
        for line in self._lines.values():
            for waiter, refusal in line.overdue(now):
                self._too_late += 1
                self._refuse(waiter, refusal)
            self._go_on(line)
        self._look_again()
