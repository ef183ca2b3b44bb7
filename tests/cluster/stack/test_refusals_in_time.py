"""Orders that come too late: to move while all drain, to signal a rank that has died."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from blockyard.cluster.actors import ActorRank
from blockyard.cluster.central import CentralScheduler
from blockyard.cluster.group import GroupLost
from blockyard.cluster.grpc_api import GenerationApi
from blockyard.protos import generation_pb2 as pb


async def test_nobody_is_told_to_let_go_once_all_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def member(name: str) -> SimpleNamespace:
        model = SimpleNamespace(name="small")
        identity = SimpleNamespace(group_id=name, model=model, resting=False)
        return SimpleNamespace(identity=identity, draining=False)

    central = CentralScheduler()
    monkeypatch.setattr(central.reliever, "relieve", asked.append)
    monkeypatch.setattr(central._preempter, "pass_on", asked.append)
    monkeypatch.setattr(central, "_members", {name: member(name) for name in ("a", "b")})
    central._relieve("small")
    assert len(asked) == 2
    monkeypatch.setattr(central, "_draining", True)
    central._relieve("small")
    assert len(asked) == 2


def test_a_rank_that_has_died_is_found_by_who_signals_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    rank = ActorRank(None)
    monkeypatch.setattr(rank, "_local_process", ended.pid)
    with pytest.raises(LookupError, match="died already"):
        rank.signal(9)


def test_kept_messages_count_what_they_take_in_memory() -> None:
    nobody: Any = None
    api = GenerationApi(nobody, nobody, nobody)
    assert api._resumable._size_of(pb.GenerateChunk(token_ids=[1])) > 500


async def test_another_group_is_not_waited_for_by_an_engine_that_is_lost(stack: Any) -> None:
    async def never() -> Any:
        raise AssertionError("nobody is to make a group")

    group = await stack.add_group()
    group.server.engine._lose("rank 0 has died")
    with pytest.raises(GroupLost, match="rank 0 has died"):
        async with asyncio.timeout(10):
            await group.server.engine.succession.ask(never)
