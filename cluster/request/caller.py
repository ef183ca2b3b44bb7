"""What a transport knows of a call beside its message: on whose behalf, and how long they wait.

A tenant comes from whoever authenticated the caller; the client's own `tenant` field only
subdivides it. Units: seconds.
"""

from dataclasses import dataclass

__all__ = ["ANYBODY", "Caller", "belongs_to"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls.

    Attributes:
        tenant: with whom it shares what is its fair part; empty for who is not known.
        deadline_seconds: from now until the caller hangs up; None when it waits as long as it
            takes.
        traceparent: the span that the call is made under, as W3C trace context names it; empty for
            none.
        part_of, first_number: see `RequestSpec`, of one of several prompts.
        sees_all: whether it may know the names of other tenants' requests.
    """

    tenant: str = ""
    deadline_seconds: float | None = None
    traceparent: str = ""
    sees_all: bool = False
    part_of: str = ""
    first_number: int = 0

    def tenant_of(self, own_name: str) -> str:
        """The tenant that the caller means by a name of its own; none is the whole of it."""
        return f"{self.tenant}/{own_name}" if own_name else self.tenant

    def may_name(self, request_tenant: str) -> bool:
        """Whether it may know the name of a request of that tenant."""
        return self.sees_all or belongs_to(request_tenant, self.tenant)


def belongs_to(request_tenant: str, tenant: str) -> bool:
    """Whether a request is a tenant's; without keys there is none, and all is everybody's."""
    return not tenant or request_tenant == tenant or request_tenant.startswith(f"{tenant}/")


ANYBODY = Caller()
"""Not known, and in no hurry."""
