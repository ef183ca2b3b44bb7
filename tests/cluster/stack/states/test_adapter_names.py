"""No two models get an adapter of one name, however close the orders come."""

import asyncio
from typing import Any

from blockyard.cluster.group_identity import GroupIdentity
from blockyard.cluster.states.central_states import ModelStates
from blockyard.cluster.states.model_state import Became, Become, Order, Ordered
from blockyard.scheduler.request import RefusalCode
from blockyard.workers.adapter_description import AdapterDescription
from blockyard.workers.description import ModelDescription


class Group:
    """Answers what it is asked to become when a test lets it."""

    def __init__(self, model: str) -> None:
        description = ModelDescription(model, "/nowhere", "Witness", 64, 99, ())
        self.identity = GroupIdentity(model, description, "cpu", "int64", 4, "127.0.0.1", 1, b"")
        self.asked: list[Become] = []

    def post(self, message: Any) -> None:
        self.asked.append(message)


def loading(model: str, version: str = "1") -> Order:
    return Order(7, model, False, load=AdapterDescription("style", "/adapters", version, 4))


async def test_of_two_orders_for_one_name_the_second_is_refused_until_it_is_free() -> None:
    states = ModelStates(lambda: None)
    groups = {name: Group(name) for name in ("one", "two")}
    for group in groups.values():
        states.joined([group])

    def order(asked: Order) -> "asyncio.Task[Ordered]":
        return asyncio.create_task(states.carry_out(asked, lambda model: [groups[model]]))

    first, second = order(loading("one")), order(loading("two"))
    refused = await second
    assert refused.code is RefusalCode.EXISTS and "adapter of one" in refused.message
    assert groups["two"].asked == []
    asked = groups["one"].asked.pop()
    states.became(groups["one"], Became(asked.ticket, asked.state, RefusalCode.INVALID, "damaged"))
    while not groups["one"].asked:  # it goes back to what it was
        await asyncio.sleep(0.001)
    back = groups["one"].asked.pop()
    states.became(groups["one"], Became(back.ticket, back.state))
    assert (await first).code is RefusalCode.INVALID
    again = order(loading("two"))
    while not groups["two"].asked:
        await asyncio.sleep(0.001)
    asked = groups["two"].asked.pop()
    states.became(groups["two"], Became(asked.ticket, asked.state))
    assert (await again).code is None
    assert (await order(loading("one", "2"))).code is RefusalCode.EXISTS
