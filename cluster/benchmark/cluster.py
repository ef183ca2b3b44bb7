"""What a cluster does under load and under fault: how fast requests are bound, how soon another
group serves, and whether anything is lost or changed while processes die and wires break.

Everything runs on this machine, with the witness in place of a model. Units: requests, seconds.
"""

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from blockyard.cluster.benchmark.dispatch import measure_dispatch
from blockyard.cluster.benchmark.witness_cluster import Readers, groups_of, witness_cluster
from blockyard.cluster.chaos.chaos_client import disturb
from blockyard.cluster.chaos.faults import Fault
from blockyard.cluster.client import GenerationClient, ServerError

__all__ = ["ClusterBench", "measure_cluster"]

_PLACES = 8
"""Requests in a step of a group: few, so that a second group is wanted soon."""
_FIRST_READERS = 4
_READERS = 16
_TOKENS = 1500
_RECOVERY_SECONDS = 120.0
_FAULT_SECONDS = 0.5
_PROBE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ClusterBench:
    """What was measured.

    Attributes:
        dispatch_per_s: requests that the central scheduler bound a second, with 64 groups.
        dispatch_per_cpu_s: for a second of its own computing time, whatever else ran.
        scale_up_s: from the moment at which the load grew until a second group was known to serve.
        faults: how many faults there were.
        by_fault: of each kind.
        recovery_s_p50, recovery_s_max: from a fault until all groups served again.
        streams: that ended whole and right meanwhile.
        lost: streams that ended with an error.
        changed: streams with another token than without faults.
        seconds: for everything.
    """

    dispatch_per_s: float
    dispatch_per_cpu_s: float
    scale_up_s: float
    faults: int
    by_fault: dict[str, int]
    recovery_s_p50: float
    recovery_s_max: float
    streams: int
    lost: int
    changed: int
    failures: dict[str, int]
    seconds: float


def measure_cluster(
    faults: int = 200, seed: int = 0, progress: Callable[[str], None] = lambda what: None
) -> ClusterBench:
    """Measure all of it; `seed` decides which faults there are, and when.

    Raises:
        RuntimeError: no cluster came up.
        TimeoutError: a group did not come back.
    """
    began = time.monotonic()
    progress("how fast requests are bound")
    speed = measure_dispatch()
    progress("how soon a second group serves")
    never = ("--scale-quiet-seconds", "86400")  # what is up stays up
    options = ("--groups", "1:2", "--max-running", str(_PLACES), "--blocks", "8192", *never)
    with witness_cluster(*options, "--host-blocks", "256", "--allow-chaos") as address:
        broken = asyncio.run(_Broken(address, faults, seed, progress).run())
    return ClusterBench(
        dispatch_per_s=speed.per_second,
        dispatch_per_cpu_s=speed.per_cpu_second,
        scale_up_s=broken.scale_up_seconds,
        faults=sum(broken.by_fault.values()),
        by_fault=dict(broken.by_fault),
        recovery_s_p50=statistics.median(broken.recoveries) if broken.recoveries else 0.0,
        recovery_s_max=max(broken.recoveries, default=0.0),
        streams=broken.readers.finished,
        lost=broken.readers.lost,
        changed=broken.readers.changed,
        failures=dict(broken.readers.failures),
        seconds=time.monotonic() - began,
    )


class _Broken:
    """One cluster, and all that befalls it."""

    readers: Readers

    def __init__(
        self, address: str, faults: int, seed: int, progress: Callable[[str], None]
    ) -> None:
        self.by_fault: Counter[str] = Counter()
        self.recoveries: list[float] = []
        self.scale_up_seconds = 0.0
        self._address = address
        self._faults = faults
        self._chance = random.Random(seed)
        self._progress = progress

    async def run(self) -> "_Broken":
        async with GenerationClient(self._address) as client:
            quiet = Readers(client, _FIRST_READERS, _TOKENS)
            await self._until_groups(client, 1)
            grown = time.monotonic()
            self.readers = Readers(client, _READERS, _TOKENS)
            await self._until_groups(client, 2)
            self.scale_up_seconds = time.monotonic() - grown
            for number in range(self._faults):
                await self._befall(client, number)
            await asyncio.gather(quiet.stop(), self.readers.stop())
            self.readers.lost += quiet.lost
            self.readers.changed += quiet.changed
            self.readers.finished += quiet.finished
            self.readers.failures += quiet.failures
        return self

    async def _befall(self, client: GenerationClient, number: int) -> None:
        fault = self._chance.choice(list(Fault))
        group_id = self._chance.choice(await groups_of(client))
        if number % 10 == 0:
            self._progress(f"fault {number + 1} of {self._faults}, {self.readers.lost} lost so far")
        began = time.monotonic()
        await disturb(client, fault, group_id, seconds=_FAULT_SECONDS)
        self.by_fault[fault] += 1
        # What is killed may look alive for a moment yet.
        await asyncio.sleep(self._chance.uniform(0.5, 1.5))
        await self._until_groups(client, 2)
        self.recoveries.append(time.monotonic() - began)

    async def _all_step(self, client: GenerationClient) -> bool:
        """Whether every group ends steps: one whose ranks are being replaced answers, too."""
        before = {group.group_id: group.step for group in (await client.ledger()).groups}
        await asyncio.sleep(_PROBE_SECONDS)
        after = {group.group_id: group.step for group in (await client.ledger()).groups}
        return before.keys() == after.keys() and all(after[g] != before[g] for g in before)

    async def _until_groups(self, client: GenerationClient, count: int) -> None:
        """Wait until so many groups answer and step."""
        async with asyncio.timeout(_RECOVERY_SECONDS):
            while True:
                try:
                    if len(await groups_of(client)) == count and await self._all_step(client):
                        return
                except ServerError as error:
                    if error.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                        raise
                await asyncio.sleep(_PROBE_SECONDS)
