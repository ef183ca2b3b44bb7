"""What becomes of a request when its group is leaving, lost, silent or out of reach."""

import asyncio
from typing import Any

import msgspec
import pytest

from blockyard.cluster import engine_link
from blockyard.cluster.engine_link import EngineLink
from blockyard.cluster.messages import GroupIdentity, Refused
from blockyard.scheduler.request import RefusalCode, RequestRefused

pytestmark = pytest.mark.timeout(30)


async def test_a_group_that_died_while_there_is_no_central_scheduler_is_passed_over(
    world: Any,
) -> None:
    first, second = world.groups
    await world.submit("x")
    await world.lose_central()
    await first.listener.close()
    for number in range(5):
        await world.submit(f"r{number}")
    assert len(second.taken) == 5


async def test_a_group_that_refuses_because_it_goes_is_passed_over(world: Any) -> None:
    first, second = world.groups
    first.refusal = Refused(0, RefusalCode.UNAVAILABLE, "shutting down")
    await world.submit("x")
    assert second.taken == ["x"]
    second.refusal = Refused(0, RefusalCode.UNAVAILABLE, "shutting down, too")
    with pytest.raises(RequestRefused, match="shutting down, too"):
        await world.submit("y")


@pytest.mark.parametrize("code", [RefusalCode.INVALID, RefusalCode.EXHAUSTED])
async def test_a_refusal_for_a_reason_is_not_shopped_around(world: Any, code: RefusalCode) -> None:
    first, second = world.groups
    first.refusal = Refused(0, code, "a reason", "prompt")
    with pytest.raises(RequestRefused) as refused:
        await world.submit("x")
    assert (refused.value.code, refused.value.field) == (code, "prompt")
    assert second.taken == []


async def test_a_silent_group_is_given_up_for_another(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = world.groups
    first.silent = True
    monkeypatch.setattr(engine_link, "ANSWER_SECONDS", 0.05)
    await world.submit("x")
    assert second.taken == ["x"]
    while first.aborted != ["x"]:  # or it would run there, too, once it wakes up
        await asyncio.sleep(0.001)
    assert [report.group_id for report in await world.dispatcher.reports()] == ["b"]


async def test_a_group_out_of_reach_holds_up_nobody_bound_to_another(world: Any) -> None:
    first, _ = world.groups
    # Somebody accepts there, and never says a word.
    never = asyncio.Event()

    async def stay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()
        await writer.wait_closed()

    hole = await asyncio.start_server(stay, "127.0.0.1", 0)
    host, port = hole.sockets[0].getsockname()[:2]
    first.identity = msgspec.structs.replace(first.identity, host=host, port=port)
    await world.tell("a", "b")
    stuck = asyncio.create_task(world.submit("x"))
    await asyncio.sleep(0.05)
    world.bind_to = "b"
    async with asyncio.timeout(2):  # less than the time a handshake may take
        await world.submit("y")
    assert not stuck.done()
    never.set()
    await stuck  # at the other group, when the hole is given up
    hole.close()
    await hole.wait_closed()


@pytest.fixture
def connecting(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], asyncio.Event]:
    """Ids of the groups that were called, and a gate that those calls wait at."""
    called: list[str] = []
    gate = asyncio.Event()
    connect = EngineLink.connect

    async def wait_and_connect(identity: GroupIdentity) -> EngineLink:
        called.append(identity.group_id)
        await gate.wait()
        return await connect(identity)

    monkeypatch.setattr(EngineLink, "connect", wait_and_connect)
    return called, gate


async def test_one_connection_serves_all_even_when_the_first_to_ask_leaves(
    world: Any, connecting: tuple[list[str], asyncio.Event]
) -> None:
    called, gate = connecting
    waiting = [asyncio.create_task(world.submit(f"r{number}")) for number in range(5)]
    while not called:
        await asyncio.sleep(0.001)
    waiting[0].cancel()
    await asyncio.wait([waiting[0]])
    gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None] * 4
    assert called == ["a"]
    assert world.groups[0].taken == ["r1", "r2", "r3", "r4"]


async def test_who_hung_up_is_called_again_last(
    world: Any, connecting: tuple[list[str], asyncio.Event]
) -> None:
    called, gate = connecting
    gate.set()
    first, second = world.groups
    await world.submit("x")
    world.bind_to = "b"
    await world.submit("y")
    await world.lose_central()
    called.clear()
    first.wires[0].abort()
    for number in range(3):
        await asyncio.sleep(0.01)
        await world.submit(f"r{number}")
    assert (called, second.taken) == ([], ["y", "r0", "r1", "r2"])
    second.refusal = Refused(0, RefusalCode.UNAVAILABLE, "shutting down")
    await world.submit("z")
    assert (called, first.taken) == (["a"], ["x", "z"])


async def test_a_group_is_known_while_it_is_told_of_or_connected(world: Any) -> None:
    first, _ = world.groups
    await world.submit("x")
    await world.tell("b")
    await world.until_groups("b", "a")  # its engine still holds the connection
    first.wires[0].abort()
    await world.until_groups("b")
    world.bind_to = "a"
    await world.submit("y")  # bound by old news
    assert world.groups[1].taken == ["y"]
    await world.tell()
    await world.until_groups("b")
    assert await world.dispatcher.ready()
    world.groups[1].wires[0].abort()
    await world.until_groups()
    assert not await world.dispatcher.ready()
    with pytest.raises(RequestRefused) as refused:
        await world.submit("z")
    assert refused.value.code is RefusalCode.UNAVAILABLE


async def test_no_message_to_clients_tells_where_anything_is(world: Any) -> None:
    for group in world.groups:
        await group.listener.close()
    with pytest.raises(RequestRefused) as refused:
        await world.submit("x")
    assert refused.value.code is RefusalCode.UNAVAILABLE
    for group in world.groups:
        assert group.identity.host not in refused.value.message
        assert str(group.identity.port) not in refused.value.message
