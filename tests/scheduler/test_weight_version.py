"""O05 for weights: blocks are filed under the scheduler's own version, whoever made the keys."""

from dataclasses import replace

import pytest

from blockyard.scheduler.block_keys import NO_EXTRAS, PrefixExtras, PromptKeys, block_keys
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.restart import restarted
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker

PROMPT = tuple(range(20))
NEW = PrefixExtras(weight_version="2")


class Served:
    """A scheduler with a witness; it may be restarted."""

    def __init__(self, version: str = "") -> None:
        limits = SchedulerConfig(64, block_size=4, max_running=4, weight_version=version)
        self.scheduler = Scheduler(limits, 40)
        self._make_worker()

    def _make_worker(self) -> None:
        self.worker = WitnessWorker(WorkerConfig("", 64, block_size=4), 97)
        self.worker.allocate(40, 0)

    def step(self) -> dict[str, int]:
        """One step; tokens that requests found, by id, of those that begin in it."""
        plan = self.scheduler.plan(0.0)
        assert plan is not None
        updates = self.scheduler.commit(self.worker.execute(plan), 0.0)
        self.scheduler.acknowledge(plan.step)
        self.scheduler.check()
        return {u.request_id: u.cached_tokens for u in updates if u.cached_tokens is not None}

    def submit(self, name: str, extras: PrefixExtras, keys: PrefixExtras | None = None) -> None:
        hints = block_keys(PROMPT, 4, keys) if keys is not None else ()
        sampling = SamplingParams(max_tokens=8)
        spec = RequestSpec(name, PROMPT, sampling, extras=extras, block_keys=hints)
        self.scheduler.submit(spec, 0.0)

    def found(self, name: str, extras: PrefixExtras, keys: PrefixExtras | None = None) -> int:
        """How much of the prompt a request finds."""
        self.submit(name, extras, keys)
        found: dict[str, int] = {}
        while self.scheduler.has_work:
            found |= self.step()
        return found[name]

    def change_weights(self, version: str) -> None:
        self.scheduler = restarted(self.scheduler, 0.0, version)
        self._make_worker()

    def keys(self) -> set[bytes]:
        return {block.key for block in self.scheduler.prefix_snapshot()}


@pytest.mark.parametrize(
    ("extras", "keys"), [(NO_EXTRAS, None), (NO_EXTRAS, NO_EXTRAS), (NEW, None), (NEW, NEW)]
)
def test_blocks_are_filed_under_the_schedulers_own_version(
    extras: PrefixExtras, keys: PrefixExtras | None
) -> None:
    served = Served("2")
    assert served.found("first", extras, keys) == 0
    assert set(block_keys(PROMPT, 4, NEW)) <= served.keys()
    assert not set(block_keys(PROMPT, 4, NO_EXTRAS)) & served.keys()
    # Whoever comes next is served from them, whatever version it was meant for.
    assert served.found("second", NO_EXTRAS, NO_EXTRAS) == 16
    assert served.found("third", NEW, NEW) == 16
    assert served.found("another salt", replace(NEW, salt="s")) == 0


def test_a_request_under_way_leaves_its_blocks_under_the_new_version() -> None:
    served = Served()
    served.submit("under way", NO_EXTRAS, NO_EXTRAS)
    served.step()
    old = served.keys()
    assert old
    served.change_weights("2")
    assert served.keys() == set()
    while served.scheduler.has_work:
        served.step()
    assert served.keys() and not served.keys() & old
    assert served.found("late", NO_EXTRAS, NO_EXTRAS) == 16


def test_a_prompt_has_keys_for_each_version() -> None:
    keys = PromptKeys(PROMPT, PrefixExtras(salt="s"))
    for version in ("", "1", "2", "1"):
        extras = PrefixExtras(salt="s", weight_version=version)
        assert keys.of(4, version) == block_keys(PROMPT, 4, extras)
