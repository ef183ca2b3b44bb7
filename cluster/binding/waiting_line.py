"""Those who wait at the central scheduler for a group of one model, and the groups that they want.

Knows how many may wait, who has to go when there are more, and for whom it is too late. Units:
tokens, seconds.
"""

from dataclasses import dataclass, field
from typing import Protocol

from blockyard.cluster.member import Member
from blockyard.cluster.messages import Bind, Join
from blockyard.cluster.tracing import Span
from blockyard.scheduler.asking import Asking
from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.deadline import DeadlineMiss, due_at, judge_deadline
from blockyard.scheduler.global_queue import GlobalQueue
from blockyard.scheduler.group_board import GroupBoard
from blockyard.scheduler.request import RefusalCode, RequestRefused

__all__ = ["AskingIngress", "Waiter", "WaitingLine"]

_MAX_WAITING = 4096
"""For each group that does not say how many may wait for it."""
_NOT_MEASURED = CostModel(0, 0.0, 0.0)


class AskingIngress(Protocol):
    """The connection of one; the wire's in a cluster."""

    def post(self, message: object) -> None:
        """Tell it."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class Waiter(Asking):
    """One request, who asks for it, and by what words."""

    ingress: AskingIngress
    bind: Bind
    span: Span | None

    @classmethod
    def of(cls, ingress: AskingIngress, bind: Bind, now: float, span: Span | None) -> "Waiter":
        """What an ingress asks, as queues and boards want it."""
        return cls(
            bind.request_id,
            bind.prompt_tokens,
            bind.priority,
            bind.tenant,
            bind.places,
            bind.block_keys,
            bind.block_size,
            now - bind.waited,
            None if bind.seconds is None else now + bind.seconds,
            bind.outputs,
            ingress=ingress,
            bind=bind,
            span=span,
        )


@dataclass(slots=True)
class WaitingLine:
    """One model's groups that take requests, those that rest, and who waits for them.

    Attributes:
        rates: of one group, as told last.
        limit: most requests that may wait, here and at the groups together.
        charged: groups whose requests count against their tenants.
    """

    queue: GlobalQueue[Waiter]
    board: GroupBoard = field(default_factory=GroupBoard)
    resting: dict[str, Member] = field(default_factory=dict)
    rates: CostModel = _NOT_MEASURED
    limit: int = 0
    charged: set[str] = field(default_factory=set)

    def take_over(self, join: Join) -> None:
        """A group has come with requests that it was given before this line was there.

        One that comes again has only what it was given from here, or while it was away.
        """
        if join.group.group_id not in self.charged:
            self.charged.add(join.group.group_id)
            for part in join.under_way:
                self.queue.take_over(part.priority, part.tenant, part.tokens)

    def take_groups(self, members: list[Member]) -> None:
        """Groups have come, gone, fallen asleep or woken up; these are all of the model."""
        here = {member.candidate.group_id: member for member in members if not member.draining}
        self.resting = {name: member for name, member in here.items() if member.identity.resting}
        for group_id in self.board.group_ids - (here.keys() - self.resting.keys()):
            self.board.remove(group_id)
        for member in members:
            self.note(member)
        self.limit = sum(m.identity.max_waiting or _MAX_WAITING for m in here.values())

    def note(self, member: Member) -> None:
        """A group stands otherwise than before."""
        if member.takes_requests:
            self.board.put(member)

    def took_books(self, member: Member) -> None:
        """A group's books have come."""
        rate = member.candidate.ledger.prefill_tokens_per_second
        if rate and rate != self.rates.prefill_tokens_per_second:
            self.rates = CostModel(0, rate, 0.0)

    def enter(self, waiter: Waiter, now: float) -> Waiter | None:
        """Have a request wait; who has to leave for it, perhaps itself.

        Raises:
            RequestRefused: it cannot be answered in time.
        """
        if waiter.deadline_at is not None:
            self._refuse_too_late(waiter, now, self.queue.tokens_before(waiter.priority))
        sheds = None
        if len(self.queue) + self.board.num_waiting >= self.limit:
            sheds = self.queue.sheds(waiter)
            if sheds is waiter:
                return waiter
            self.queue.remove(sheds)
        self.queue.push(waiter, None if waiter.deadline_at is None else self._due_at(waiter))
        return sheds

    def shed_message(self) -> str:
        """What those are told who have to leave."""
        return (
            f"at most {self.limit} requests may wait, and others are more urgent or of tenants "
            "with fewer; try again later"
        )

    def overdue(self, now: float) -> list[tuple[Waiter, RequestRefused]]:
        """Those for whom it has become too late, and what they are told."""
        found = []
        for waiter in self.queue.overdue(now, self._due_at):
            try:
                self._refuse_too_late(waiter, now, 0)
            except RequestRefused as refusal:
                found.append((waiter, refusal))
        return found

    def _due_at(self, waiter: Waiter) -> float:
        assert waiter.deadline_at is not None
        return due_at(waiter.deadline_at, self._own_tokens(waiter), waiter.outputs, self.rates)

    def _own_tokens(self, waiter: Waiter) -> int:
        """What a request has to compute before its first token, where it has least to."""
        return max(1, waiter.tokens - self.board.most_known(waiter) * waiter.block_size)

    def _refuse_too_late(self, waiter: Waiter, now: float, tokens_ahead: int) -> None:
        assert waiter.deadline_at is not None
        verdict = judge_deadline(
            waiter.deadline_at - now,
            self._own_tokens(waiter),
            waiter.outputs,
            tokens_ahead // max(1, len(self.board)),
            self.rates,
        )
        if verdict is None:
            return
        if verdict.miss is DeadlineMiss.QUEUE:
            raise RequestRefused(RefusalCode.EXHAUSTED, verdict.message)
        raise RequestRefused(RefusalCode.INVALID, verdict.message, "deadline_seconds")
