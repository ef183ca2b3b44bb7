"""What a transport knows of a call beside its message: on whose behalf, and how long they wait.

A tenant comes from whoever authenticated the caller; the client's own `tenant` field only
subdivides it. Units: seconds.
"""

from dataclasses import dataclass

__all__ = ["ANYBODY", "Caller"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls.

    Attributes:
        tenant: with whom it shares what is its fair part; empty for who is not known.
        deadline_seconds: from now until the caller hangs up; None when it waits as long as it
            takes.
        traceparent: the span that the call is made under, as W3C trace context names it; empty for
            none.
    """

    tenant: str = ""
    deadline_seconds: float | None = None
    traceparent: str = ""

    def tenant_of(self, own_name: str) -> str:
        """The tenant that the caller means by a name of its own; none is the whole of it."""
        return f"{self.tenant}/{own_name}" if own_name else self.tenant


ANYBODY = Caller()
"""Not known, and in no hurry."""
