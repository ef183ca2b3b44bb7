"""When a withdrawn adapter is dropped, while requests come and other adapters are loaded."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from blockyard.cluster.adapters.engine_adapters import EngineAdapters
from blockyard.scheduler.block_keys import PrefixExtras
from blockyard.scheduler.request import RefusalCode, RequestRefused, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.adapter_description import AdapterDescription

ONE, OTHER = (AdapterDescription(name, f"/adapters/{name}", "1", 4) for name in "ab")
EXTRAS = PrefixExtras("a", "1")
SPEC = RequestSpec("late", (1, 2), SamplingParams(max_tokens=9), extras=EXTRAS)


class Engine:
    """Serves what it is told that it serves, and has no step under way."""

    num_under_way = 0

    def __init__(self) -> None:
        self.live: set[str] = set()

    def listen(self, listener: Any) -> None:
        """Who listens is called by the test."""

    def serves(self, request_id: str) -> bool:
        return request_id in self.live


class Host:
    """Ranks that load and drop as slowly as a test wants."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.may_load, self.may_drop = asyncio.Event(), asyncio.Event()
        self.may_load.set()
        self.may_drop.set()

    async def load_adapter(self, adapter: AdapterDescription) -> None:
        await self.may_load.wait()
        self.loaded.append(adapter.adapter_id)

    async def drop_adapter(self, adapter_id: str) -> None:
        await self.may_drop.wait()
        self.loaded.remove(adapter_id)


@pytest.fixture
async def adapters() -> AsyncIterator[Any]:
    made: Any = EngineAdapters(Engine())  # type: ignore[arg-type]  # it asks no more of one
    made.host = Host()
    await made.load(ONE)
    yield made
    made.close()
    await made.wait_dropped()


async def let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_comes_from_elsewhere_while_another_is_loaded_keeps_its_adapter(
    adapters: Any,
) -> None:
    engine, host = adapters._engine, adapters.host
    host.may_load.clear()
    loading = asyncio.create_task(adapters.load(OTHER))
    await let_others_run()
    adapters.withdraw("a")
    await let_others_run()  # nobody has it: it would be gone, were nothing loaded
    adapters.check(EXTRAS, begun=True)
    engine.live.add("late")
    adapters.submitted(SPEC)
    host.may_load.set()
    await loading
    await let_others_run()
    assert set(host.loaded) == {ONE.adapter_id, OTHER.adapter_id}
    engine.live.clear()
    adapters.aborted("late", None)
    await adapters.wait_dropped()
    assert (host.loaded, adapters.leaving) == ([OTHER.adapter_id], ())


async def test_who_comes_while_its_adapter_is_dropped_is_sent_elsewhere(adapters: Any) -> None:
    host = adapters.host
    host.may_drop.clear()
    adapters.withdraw("a")
    adapters.check(EXTRAS, begun=True)
    with pytest.raises(RequestRefused, match="is not loaded here"):
        adapters.check(EXTRAS, begun=False)
    await let_others_run()
    for _ in range(2):  # while it is, and after it was
        with pytest.raises(RequestRefused, match="is not loaded here") as refused:
            adapters.check(EXTRAS, begun=True)
        assert refused.value.code is RefusalCode.UNAVAILABLE
        host.may_drop.set()
        await adapters.wait_dropped()
    assert host.loaded == []


async def test_one_that_could_not_be_dropped_is_gone_all_the_same(
    adapters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(adapter_id: str) -> None:
        raise OSError("no such rank")

    monkeypatch.setattr(adapters.host, "drop_adapter", fail)
    adapters.withdraw("a")
    await adapters.wait_dropped()
    assert adapters.leaving == ()
    await adapters.load(ONE)  # nothing stands in its way
