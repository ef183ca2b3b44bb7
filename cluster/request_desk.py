"""Who is served by one engine, by the names that clients know, for those who ask or call them off.

A tenant sees its own requests alone: of others it learns how many blocks they hold and no name.
Listens to the engine, so it knows whoever is served. Knows no wire. Units: as in `Explanation`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from blockyard.cluster.engine import Engine
from blockyard.cluster.request.caller import belongs_to
from blockyard.cluster.served_request import ServedRequest
from blockyard.scheduler.explain import Explanation
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate
from blockyard.scheduler.snapshot import RequestSnapshot

__all__ = ["RequestDesk", "is_called"]


class RequestDesk:
    """An engine listener. `deliver` takes the last words of requests that are called off."""

    def __init__(self, engine: Engine, deliver: Callable[[list[RequestUpdate]], None]) -> None:
        self._engine = engine
        self._deliver = deliver
        self._specs: dict[str, RequestSpec] = {}
        engine.listen(self)

    def find(self, tenant: str, name: str) -> tuple[ServedRequest, ...]:
        """Requests of a tenant with a name: one at most, unless nobody has a tenant."""
        return tuple(self._served(tenant, spec) for spec in self._named(tenant, name))

    def call_off(self, tenant: str, name: str) -> tuple[ServedRequest, ...]:
        """End the requests that `find` finds, and tell whoever reads their answers."""
        specs = self._named(tenant, name)
        found = tuple(self._served(tenant, spec) for spec in specs)
        for spec in specs:
            explained = self._engine.explain(spec.request_id)
            choices = {choice for each in explained for choice in (each.choice, *each.begins)}
            if spec.sampling.searches:  # none has begun, as its client sees it
                choices.update(range(spec.num_choices))
            self._engine.abort(spec.request_id)
            self._deliver(
                [
                    RequestUpdate(spec.request_id, (), FinishReason.ABORT, choice=choice)
                    for choice in sorted(choices)
                ]
            )
        return found

    def submitted(self, spec: RequestSpec) -> None:
        """A request was taken."""
        self._specs[spec.request_id] = spec

    def resumed(self, snapshot: RequestSnapshot) -> None:
        """A request goes on here."""
        self._specs[snapshot.spec.request_id] = snapshot.spec

    def stepped(self, updates: Sequence[RequestUpdate]) -> None:
        """A step has ended."""
        for update in updates:
            if update.finish_reason is not None:
                self._forget_ended(update.request_id)

    def aborted(self, request_id: str, choice: int | None) -> None:
        """A request, or a choice of it, was given up."""
        self._forget_ended(request_id)

    def _forget_ended(self, request_id: str) -> None:
        if not self._engine.serves(request_id):
            self._specs.pop(request_id, None)

    def _named(self, tenant: str, name: str) -> list[RequestSpec]:
        return [
            spec
            for spec in self._specs.values()
            if is_called(spec, name) and belongs_to(spec.tenant, tenant)
        ]

    def _served(self, tenant: str, spec: RequestSpec) -> ServedRequest:
        explained = self._engine.explain(spec.request_id)
        return ServedRequest(
            _public(spec), tuple(self._told(tenant, explanation) for explanation in explained)
        )

    def _told(self, tenant: str, explanation: Explanation) -> Explanation:
        """An explanation with the names that this tenant may know."""

        def known(request_id: str) -> str:
            spec = self._specs.get(request_id)
            if spec is None or not belongs_to(spec.tenant, tenant):
                return ""
            return _public(spec)

        holders = tuple(
            replace(holder, request_id=known(holder.request_id)) for holder in explanation.holders
        )
        own = self._specs[explanation.request_id]
        return replace(
            explanation,
            request_id=_public(own),
            choice=own.first_number + explanation.choice,
            begins=tuple(own.first_number + choice for choice in explanation.begins),
            holders=holders,
            behind=known(explanation.behind),
        )


def is_called(spec: RequestSpec, name: str) -> bool:
    """Whether that is what its client calls a request, or what it is a part of."""
    return name in (spec.name, spec.request_id) or (bool(name) and name == spec.part_of)


def _public(spec: RequestSpec) -> str:
    return spec.name or spec.request_id
