"""The ingresses as the central scheduler knows them: their names, their waiting, their questions.

Holds what clients call their live requests, so that no two ingresses take the same name; counts
requests that wait for a group; passes a question after a request that no group has from one ingress
to all the others. Knows no groups.
"""

from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from blockyard.cluster.served_request import AskUnplaced, ServedRequest, UnplacedAnswer

__all__ = ["IngressDesk"]


class _Ingress(Protocol):
    """The connection of one; the wire's in a cluster."""

    def post(self, message: Any) -> None: ...


@dataclass(slots=True)
class _Search:
    """One question: who asked, who has not answered, what was found."""

    asker: _Ingress
    ticket: int
    unanswered: set[_Ingress]
    found: tuple[ServedRequest, ...] = ()


class IngressDesk:
    """All ingresses that are linked."""

    def __init__(self) -> None:
        # Each with how many of its requests wait for a group, by model.
        self._unplaced: dict[_Ingress, dict[str, int]] = {}
        self._names: dict[str, _Ingress] = {}
        self._searches: dict[int, _Search] = {}
        self._tickets = count(1)

    @property
    def names(self) -> frozenset[str]:
        """What clients call their live requests."""
        return frozenset(self._names)

    def __contains__(self, ingress: _Ingress) -> bool:
        """Whether that connection is an ingress's."""
        return ingress in self._unplaced

    def join(self, ingress: _Ingress, names: tuple[str, ...]) -> None:
        """An ingress is there, and holds these names."""
        self._unplaced.setdefault(ingress, {})
        for name in names:
            self._names.setdefault(name, ingress)

    def leave(self, connection: _Ingress) -> None:
        """A connection has ended, perhaps an ingress's."""
        self._unplaced.pop(connection, None)
        self._names = {name: at for name, at in self._names.items() if at is not connection}
        for ticket, search in list(self._searches.items()):
            if search.asker is connection:
                del self._searches[ticket]
            else:
                self._note_answer(ticket, connection, ())

    def tell(self, message: object) -> None:
        """Tell all of them."""
        for ingress in self._unplaced:
            ingress.post(message)

    def note_unplaced(self, ingress: _Ingress, model: str, requests: int) -> None:
        """So many requests of a model wait there for a group."""
        self._unplaced[ingress][model] = requests

    def num_unplaced(self, model: str) -> int:
        """Requests of a model that wait for a group."""
        return sum(waiting.get(model, 0) for waiting in self._unplaced.values())

    def has_elsewhere(self, name: str, ingress: _Ingress) -> bool:
        """Whether another ingress than that one has a request of that name."""
        return self._names.get(name, ingress) is not ingress

    def hold(self, name: str, ingress: _Ingress) -> None:
        """An ingress has a request of that name, if it has one."""
        if name:
            self._names[name] = ingress

    def release(self, name: str, ingress: _Ingress) -> None:
        """The request has ended."""
        if self._names.get(name) is ingress:
            del self._names[name]

    def search(self, ingress: _Ingress, asked: AskUnplaced) -> None:
        """Ask all other ingresses; answered once they all have answered or gone."""
        others = set(self._unplaced) - {ingress}
        if not others:
            ingress.post(UnplacedAnswer(asked.ticket, ()))
            return
        ticket = next(self._tickets)
        self._searches[ticket] = _Search(ingress, asked.ticket, others)
        for other in others:
            other.post(AskUnplaced(ticket, asked.tenant, asked.name, asked.call_off))

    def answered(self, ingress: _Ingress, answer: UnplacedAnswer) -> None:
        """An ingress has told what it has."""
        self._note_answer(answer.ticket, ingress, answer.requests)

    def _note_answer(
        self, ticket: int, ingress: _Ingress, requests: tuple[ServedRequest, ...]
    ) -> None:
        search = self._searches.get(ticket)
        if search is None or ingress not in search.unanswered:
            return
        search.unanswered.discard(ingress)
        search.found += requests
        if not search.unanswered:
            del self._searches[ticket]
            search.asker.post(UnplacedAnswer(search.ticket, search.found))
