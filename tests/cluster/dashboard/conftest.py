"""A whole server of this process whose steps a test lets happen, and a browser without a screen."""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from blockyard.cluster.dashboard.yard_feed import YardFeed
from blockyard.cluster.dashboard.yard_routes import yard_routes
from blockyard.cluster.dashboard.yard_view import YardView
from blockyard.cluster.dispatch import TokenStream
from blockyard.cluster.http_front import HttpFront
from blockyard.cluster.local_dispatcher import LocalDispatcher
from blockyard.cluster.request.api_keys import ApiKey, KeyRing
from blockyard.cluster.tokenizer import load_tokenizer
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.config import WorkerConfig
from blockyard.workers.description import describe_model
from blockyard.workers.fake import WitnessWorker
from blockyard.workers.witness_files import write_witness_files

VOCABULARY = 259
RUNNING = 8


class HeldWorker(WitnessWorker):
    """The witness, which takes a step only when it is let."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config, VOCABULARY)
        self._permits = threading.Semaphore(0)
        self._free = threading.Event()

    def execute(self, plan: StepPlan) -> StepResult:
        while not self._free.is_set() and not self._permits.acquire(timeout=0.02):
            pass
        return super().execute(plan)

    def let(self, num_steps: int) -> None:
        self._permits.release(num_steps)

    def run_free(self) -> None:
        self._free.set()


@dataclass
class Yard:
    """The server: its worker, its engine, and where a browser finds it."""

    worker: HeldWorker
    dispatcher: LocalDispatcher
    url: str
    streams: list[TokenStream] = field(default_factory=list)

    async def submit(
        self, name: str, num_prompt: int, max_tokens: int, priority: int = 0, tenant: str = ""
    ) -> None:
        prompt = tuple((7 * n + len(name) + ord(name[-1])) % 250 for n in range(num_prompt))
        sampling = SamplingParams(max_tokens=max_tokens)
        spec = RequestSpec(name, prompt, sampling, priority, tenant)
        self.streams.append(await self.dispatcher.submit("witness", spec))


@pytest.fixture
async def make_yard(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Yard]]]:
    """Starts servers with so many blocks, perhaps with keys; `template` replaces the model's."""
    write_witness_files(tmp_path)
    model = describe_model(tmp_path, "witness")
    ends: list[Callable[[], Awaitable[Any]]] = []

    async def make(
        num_blocks: int,
        num_host_blocks: int = 0,
        template: str | None = None,
        keys: KeyRing | None = None,
    ) -> Yard:
        if template is not None:
            told = json.loads((tmp_path / "tokenizer_config.json").read_text())
            told["chat_template"] = template or None
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
        tokenizer = load_tokenizer(tmp_path)
        view = YardView(["witness"] if tokenizer.has_chat_template else [])
        config = WorkerConfig(
            str(tmp_path),
            model.context_tokens,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            max_running=RUNNING,
        )
        worker = HeldWorker(config)
        limits = SchedulerConfig(model.context_tokens, max_running=RUNNING)
        dispatcher = await LocalDispatcher.start(model, worker, limits)
        feed = YardFeed(dispatcher, 0.05, view=view)
        front = HttpFront(dispatcher, {"witness": tokenizer}, yard_routes(feed), keys)
        port = await front.start("127.0.0.1", 0)

        async def end() -> None:
            worker.run_free()
            feed.end()
            await front.stop(None)
            await dispatcher.close()

        ends.append(end)
        return Yard(worker, dispatcher, f"http://127.0.0.1:{port}/yard/")

    yield make
    for end in ends:
        await end()


@dataclass(frozen=True)
class Keys:
    """Keys of two tenants and of an administrator."""

    blue: str = "the-key-of-the-blue-team"
    red: str = "the-key-of-the-red-team"
    admin: str = "the-key-of-the-administrator"

    @property
    def ring(self) -> KeyRing:
        made = {key: hashlib.sha256(key.encode()).digest() for key in astuple(self)}
        return KeyRing(
            [
                ApiKey("blue", made[self.blue]),
                ApiKey("red", made[self.red]),
                ApiKey("ours", made[self.admin], is_admin=True),
            ]
        )


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    """Debian's Chromium, without a screen."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine; apt-get install chromium")
    from playwright.async_api import async_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield running
        await running.close()
