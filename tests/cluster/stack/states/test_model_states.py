"""Groups of a deployment sleep, wake and get other weights together, over real wires."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.states import engine_state
from blockyard.scheduler.block_keys import NO_EXTRAS, PrefixExtras, block_keys
from blockyard.workers.fake import witness_generate

pytestmark = pytest.mark.timeout(120)

OLD, NEW, BLOCK = 251, 257, 4
"""The vocabularies of both weights, and the slots of a block, as in the deployment."""

PROMPT = tuple(range(3, 23))


def known(deployment: Any, version: str) -> int:
    """Of the prompt's blocks under a version, how many the central scheduler believes to be hit."""
    keys = block_keys(PROMPT, BLOCK, PrefixExtras(weight_version=version) if version else NO_EXTRAS)
    members = deployment.stack.central._members.values()
    return int(max(member.prefix.num_known(keys) for member in members))


async def test_a_sleeping_deployment_keeps_requests_and_says_that_it_sleeps(
    deployment: Any, ask: Any
) -> None:
    stack = deployment.stack
    assert await stack.dispatcher.ready()
    told = await deployment.sleep()
    assert (told.model, told.sleeping, told.groups) == ("witness", True, 2)
    assert deployment.told == told
    assert not await stack.dispatcher.ready()
    assert all(group.state.resting for group in deployment.groups)
    waiting = [asyncio.create_task(ask(prompt=(number, 9))) for number in range(6)]
    await stack.until(lambda: sum(g.server.engine.num_requests for g in deployment.groups) == 6)
    assert (await deployment.sleep()).sleeping  # asked for again it is what it is
    assert all(group.server.engine.stalled_seconds() == 0 for group in deployment.groups)
    assert not any(task.done() for task in waiting)
    told = await deployment.wake()
    assert (told.sleeping, told.weight_version, told.groups) == (False, "", 2)
    assert await stack.dispatcher.ready()
    answers = [(await task)[0] for task in waiting]
    assert answers == [witness_generate((number, 9), 20, OLD) for number in range(6)]


async def test_no_block_of_old_weights_is_found_by_anybody(deployment: Any, ask: Any) -> None:
    old, new = (witness_generate(PROMPT, 20, vocab) for vocab in (OLD, NEW))
    assert await ask() == (old, 0)
    await deployment.settled()
    assert known(deployment, "") == 5
    assert await ask() == (old, 16)
    told = await deployment.update()
    assert told.weight_version and not told.sleeping
    await deployment.settled()
    # The ingress names the prompt's blocks by the new weights, and so does the central scheduler.
    assert await ask() == (new, 0)
    await deployment.settled()
    assert [known(deployment, version) for version in (told.weight_version, "")] == [5, 0]
    assert await ask() == (new, 16)
    # Weights that were loaded before have another name when they are loaded again.
    again = await deployment.update("started")
    assert again.weight_version not in ("", told.weight_version)
    assert await ask() == (old, 0)


async def test_a_request_under_way_keeps_its_tokens_and_goes_on_under_the_new_weights(
    deployment: Any, spec: Callable[..., Any]
) -> None:
    dispatcher = deployment.stack.dispatcher
    stream = await dispatcher.submit("witness", spec("long", PROMPT, 150))
    tokens: list[int] = []
    updates = aiter(stream)
    while len(tokens) < 20:
        tokens += (await anext(updates)).token_ids
    await deployment.update()
    async for update in updates:
        tokens += update.token_ids
    old = witness_generate(PROMPT, 150, OLD)
    kept = next(n for n in range(150) if tokens[n] != old[n])
    assert len(tokens) == 150 and kept >= 20
    assert tokens[kept:] == witness_generate((*PROMPT, *tokens[:kept]), 150 - kept, NEW)


async def test_while_weights_are_loaded_nobody_is_welcome_and_nobody_is_lost(
    deployment: Any, ask: Any
) -> None:
    stack = deployment.stack
    for group in deployment.groups:
        group.may_load.clear()
    updating = asyncio.create_task(deployment.update())
    await stack.until(lambda: all(group.state.resting for group in deployment.groups))
    assert not await stack.dispatcher.ready()
    assert not deployment.told.sleeping
    waiting = asyncio.create_task(ask())
    await stack.until(lambda: any(g.server.engine.num_requests for g in deployment.groups))
    # One that serves again is preferred.
    deployment.groups[1].may_load.set()
    await stack.until(lambda: not deployment.groups[1].state.resting)
    await stack.until(lambda: bool(stack.dispatcher.links.serving(())))
    assert await ask() == (witness_generate(PROMPT, 20, NEW), 0)
    deployment.groups[0].may_load.set()
    await updating
    assert (await waiting)[0] == witness_generate(PROMPT, 20, NEW)


@pytest.mark.parametrize("broken", ["missing", "other shape", "unreadable"])
async def test_when_one_group_cannot_all_stay_as_they_were(
    deployment: Any, ask: Any, broken: str
) -> None:
    there = deployment.groups[1].root / "new"
    if broken == "missing":
        (there / "config.json").unlink()
    elif broken == "other shape":
        (there / "config.json").write_text('{"model_type": "another"}')
    else:
        (there / "vocab").write_text("no number")
    with pytest.raises(ApiError) as refused:
        await deployment.update()
    code = ApiCode.UNAVAILABLE if broken == "unreadable" else ApiCode.INVALID_ARGUMENT
    assert (refused.value.code, refused.value.field) == (code, "directory")
    assert str(deployment.groups[1].root) not in refused.value.message
    assert (deployment.told.weight_version, deployment.told.sleeping) == ("", False)
    assert await deployment.stack.dispatcher.ready()
    for _ in range(3):
        assert (await ask())[0] == witness_generate(PROMPT, 20, OLD)
    for group in deployment.groups:
        assert group.state.state.version == ""


async def test_an_order_whose_files_fail_unexpectedly_is_answered(
    deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **settings: Any) -> None:
        raise RecursionError("somewhere in /a/secret/place")

    monkeypatch.setattr(engine_state, "refuse_other_shape", fail)
    async with asyncio.timeout(30):
        with pytest.raises(ApiError, match="could not be done; its log tells why") as refused:
            await deployment.update()
    assert refused.value.code is ApiCode.UNAVAILABLE
    assert "secret" not in refused.value.message
    assert await deployment.stack.dispatcher.ready()
    monkeypatch.undo()
    assert (await deployment.update()).weight_version


async def test_groups_that_come_later_become_what_the_others_are(deployment: Any, ask: Any) -> None:
    stack = deployment.stack
    told = await deployment.update()
    await deployment.sleep()
    late = await deployment.add()
    await stack.until(lambda: late.state.state == deployment.groups[0].state.state)
    assert late.state.resting
    await stack.stop_central()
    await stack.start_central()
    later = await deployment.add()
    await stack.until(lambda: len(stack.central.group_ids) == 4)
    await stack.until(lambda: later.state.state.generation == 2 and later.state.resting)
    await stack.until(lambda: stack.dispatcher.linked and len(stack.dispatcher.group_ids) == 4)
    assert (await deployment.wake()).weight_version == told.weight_version
    for group in deployment.groups:
        assert group.server.engine._group.weight_version == told.weight_version
    assert await ask() == (witness_generate(PROMPT, 20, NEW), 0)


async def test_a_group_that_leaves_holds_nobody_up(deployment: Any) -> None:
    first, second = deployment.groups
    second.may_load.clear()
    await deployment.sleep()
    waking = asyncio.create_task(deployment.wake())
    await deployment.stack.until(lambda: not first.state.resting)
    deployment.groups.remove(second)
    second.may_load.set()
    second._link.cancel()
    assert not (await waking).sleeping
    await second.close()


async def test_while_the_central_scheduler_is_away_nothing_can_be_asked(
    deployment: Any,
) -> None:
    await deployment.stack.stop_central()
    await deployment.stack.until(lambda: not deployment.stack.dispatcher.linked)
    with pytest.raises(ApiError, match="not there at the moment") as refused:
        await deployment.sleep()
    assert refused.value.code is ApiCode.UNAVAILABLE


async def test_an_order_under_way_is_answered_when_the_central_scheduler_goes(
    deployment: Any,
) -> None:
    for group in deployment.groups:
        group.may_load.clear()
    await deployment.sleep()
    waking = asyncio.create_task(deployment.wake())
    states = [group.state for group in deployment.groups]
    await deployment.stack.until(lambda: all(state._changing.locked() for state in states))
    await deployment.stack.stop_central()
    async with asyncio.timeout(30):
        with pytest.raises(ApiError, match="see what the model is now") as refused:
            await waking
    assert refused.value.code is ApiCode.UNAVAILABLE
    for group in deployment.groups:
        group.may_load.set()
    await deployment.stack.until(lambda: not any(state.resting for state in states))
