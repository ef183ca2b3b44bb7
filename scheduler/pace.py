"""How far a request has come, counted by itself or, while it decodes in lockstep, by a clock.

Requests in lockstep all compute one token in every step. Their clock counts those steps once for
all of them; how far each has come follows from where it joined. Units: tokens, steps.
"""

from dataclasses import dataclass, field

__all__ = ["Pace", "Paced"]


@dataclass(slots=True, eq=False)
class Pace:
    """The clock of those who decode in lockstep."""

    planned: int = 0
    """Steps of theirs that were planned."""
    committed: int = 0
    """Steps of theirs that were committed."""
    step: int = 0
    """The newest plan with them in it."""


@dataclass(slots=True, eq=False)
class Paced:
    """Counts of one request. Steps that were planned before it joined are its own to settle."""

    pace: Pace | None = field(init=False, default=None)
    """The clock that counts for it; None while it is counted by itself."""
    joined: int = field(init=False, default=0)
    """Steps that the clock had planned when it joined."""
    own_computed: int = field(init=False, default=0)
    own_promised: int = field(init=False, default=0)
    own_step: int = field(init=False, default=0)
    grows_at: int = field(init=False, default=0)
    """Steps planned in lockstep after which it has no slot left, or its last token is under way."""
    booked_at: int = field(init=False, default=0)
    """Steps committed in lockstep after which a block is full, or its last token has come."""

    @property
    def num_computed(self) -> int:
        """Tokens whose KV is written."""
        pace = self.pace
        if pace is None or pace.committed <= self.joined:
            return self.own_computed
        return self.own_computed + pace.committed - self.joined

    @num_computed.setter
    def num_computed(self, count: int) -> None:
        self.own_computed += count - self.num_computed

    @property
    def num_promised(self) -> int:
        """Tokens that the steps in flight compute."""
        pace = self.pace
        if pace is None:
            return self.own_promised
        return self.own_promised + pace.planned - max(self.joined, pace.committed)

    @num_promised.setter
    def num_promised(self, count: int) -> None:
        self.own_promised += count - self.num_promised

    @property
    def num_planned(self) -> int:
        """Tokens that are computed once the steps in flight have ended."""
        own = self.own_computed + self.own_promised
        return own if self.pace is None else own + self.pace.planned - self.joined

    @property
    def origin(self) -> int:
        """Where it would have started in the first step of its clock."""
        return self.own_computed + self.own_promised - self.joined

    @property
    def last_step(self) -> int:
        """Newest step that touches its blocks."""
        pace = self.pace
        return self.own_step if pace is None or pace.planned == self.joined else pace.step

    @last_step.setter
    def last_step(self, step: int) -> None:
        self.own_step = step

    def promise(self, count: int, step: int) -> None:
        """The plan of `step` computes `count` tokens, apart from any lockstep."""
        self.own_promised += count
        self.own_step = step

    def settle(self, count: int) -> int:
        """A step that was planned for it alone has computed `count` tokens; how many there are."""
        self.own_promised -= count
        self.own_computed += count
        return self.num_computed

    def keep_pace(self, pace: Pace) -> None:
        """Let the clock count all steps from now on."""
        self.joined = pace.planned
        self.pace = pace

    def lose_pace(self) -> None:
        """Count by itself again, from where it is."""
        pace, joined = self.pace, self.joined
        if pace is None:
            return
        computed = max(0, pace.committed - joined)
        self.own_computed += computed
        self.own_promised += pace.planned - joined - computed
        if pace.planned != joined:
            self.own_step = pace.step
        self.pace = None
