"""Requests of one ingress that no group has: on their way to one, or waiting for one to come up.

Their clients find them here and may end them, as they find those that engines serve. Knows neither
groups nor wires.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from blockyard.cluster.engine_stream import EngineStream
from blockyard.cluster.request.caller import belongs_to
from blockyard.cluster.request_desk import is_called
from blockyard.cluster.served_request import ServedRequest
from blockyard.scheduler.explain import Explanation, WaitReason
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestState, RequestUpdate

__all__ = ["BetweenGroups", "CalledOff", "CalledOffStream"]


class CalledOff(Exception):
    """Somebody has ended a request while it was on its way."""


@dataclass(eq=False, slots=True)
class _Traveller:
    spec: RequestSpec
    served_before: bool
    choices: Callable[[], Sequence[int]]
    travelling: asyncio.Task[Any]
    called_off: bool = False


class BetweenGroups:
    """Those of one ingress."""

    def __init__(self) -> None:
        self._travellers: dict[_Traveller, None] = {}

    def __len__(self) -> int:
        """So many are on their way."""
        return len(self._travellers)

    async def travel(
        self,
        spec: RequestSpec,
        search: Coroutine[Any, Any, tuple[str, EngineStream]],
        choices: Callable[[], Sequence[int]] | None = None,
    ) -> tuple[str, EngineStream]:
        """What the search for a group finds, unless the request is called off meanwhile.

        Args:
            spec: the request.
            search: is cancelled when nobody wants its end any more.
            choices: that have not ended, of a request that was served before.

        Raises:
            CalledOff: by somebody else than who reads its answer.
        """
        task = asyncio.create_task(search, name="find-group")
        live = choices if choices is not None else lambda: range(spec.num_choices)
        traveller = _Traveller(spec, choices is not None, live, task)
        self._travellers[traveller] = None
        try:
            found = await task
        except asyncio.CancelledError:
            if traveller.called_off:
                raise CalledOff from None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        finally:
            del self._travellers[traveller]
        if traveller.called_off:  # a group had taken it in that moment
            await found[1].abort()
            raise CalledOff
        return found

    def ids(self, tenant: str, name: str) -> frozenset[str]:
        """Ids of a tenant's requests with a name."""
        return frozenset(each.spec.request_id for _, each in self._called(tenant, name))

    def find(
        self,
        tenant: str,
        name: str,
        call_off: bool = False,
        places: Mapping[str, int] = MappingProxyType({}),
    ) -> tuple[ServedRequest, ...]:
        """A tenant's requests with a name; they are ended with `call_off`.

        `places` are of those that wait for any group to have room, by id.
        """
        found = []
        for place, traveller in self._called(tenant, name):
            spec = traveller.spec
            explained = _explain(traveller, place, places.get(spec.request_id))
            found.append(ServedRequest(spec.name or spec.request_id, explained))
            if call_off:
                traveller.called_off = True
                traveller.travelling.cancel()
        return tuple(found)

    def _called(self, tenant: str, name: str) -> list[tuple[int, _Traveller]]:
        """Those of a tenant with a name that no group has, and how many came before each."""
        return [
            (place, traveller)
            for place, traveller in enumerate(self._travellers)
            if is_called(traveller.spec, name)
            and belongs_to(traveller.spec.tenant, tenant)
            and not traveller.travelling.done()
        ]


class CalledOffStream:
    """News of a request that was called off before any group had it: `dispatch.TokenStream`."""

    def __init__(self, spec: RequestSpec, choices: Sequence[int]) -> None:
        self._spec = spec
        self._choices = list(choices)

    async def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        """The end of each choice."""
        while self._choices:
            choice = self._choices.pop(0)
            yield RequestUpdate(self._spec.request_id, (), FinishReason.ABORT, choice=choice)

    async def abort(self, choice: int | None = None) -> None:
        """Tell no more of it, or of one choice."""
        self._choices = [each for each in self._choices if choice not in (None, each)]


def _explain(traveller: _Traveller, place: int, queue_place: int | None) -> tuple[Explanation, ...]:
    spec = traveller.spec
    state = RequestState.PARKED if traveller.served_before else RequestState.WAITING
    reason = WaitReason.GROUP if queue_place is None else WaitReason.ROOM
    name = spec.name or spec.request_id
    at = place if queue_place is None else queue_place
    return tuple(
        Explanation(name, state, reason, at, choice=spec.first_number + choice)
        for choice in traveller.choices()
    )
