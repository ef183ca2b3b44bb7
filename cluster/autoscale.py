"""Ray Serve's autoscaling policy: asks the books how many groups there should be.

No request passes through Serve, so Serve by itself sees no load. A thread asks the central
scheduler for the books; the policy, which Serve's controller calls often and must never wait in,
only looks at the newest answer and has `decide_groups` decide. Units: seconds.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from blockyard.scheduler.group_load import ClusterLoad
from blockyard.scheduler.scaling import ScalingMemory, ScalingPolicy, decide_groups

__all__ = ["Replicas", "ServedScaling"]

logger = logging.getLogger("blockyard.cluster.autoscale")  # Serve pickles this file by value

LOOK_SECONDS = 0.5
"""Between two looks at the books, and between two decisions."""
ANSWER_SECONDS = 5.0
STALE_SECONDS = 5.0
"""What was seen so long ago decides nothing any more."""
FORGOTTEN_SECONDS = 60.0
"""A policy that nobody has called for so long was replaced, and looks no more."""


class Replicas(Protocol):
    """What the policy asks of Serve's `AutoscalingContext`."""

    @property
    def target_num_replicas(self) -> int:
        """Replicas that Serve tries to have."""
        ...


class ServedScaling:
    """Made once by Serve's controller for each deployment of groups.

    Args:
        model: whose groups they are.
        places: limit of running requests of each.
        policy: a `ScalingPolicy`, field by field.
        ask: answers the load of the groups, and requests that wait for one; by default the central
            scheduler of this Ray cluster is asked.
        clock: seconds.
    """

    def __init__(
        self,
        model: str,
        places: int,
        policy: Mapping[str, Any],
        ask: Callable[[str, int], ClusterLoad] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._places = places
        self._policy = ScalingPolicy(**policy)
        self._ask = ask if ask is not None else _ask_central
        self._clock = clock
        self._memory = ScalingMemory()
        self._decided_at: float | None = None
        self._called_at = clock()
        self._seen: tuple[float, ClusterLoad] | None = None
        self._watch: threading.Thread | None = None

    def __call__(self, replicas: Replicas) -> tuple[int, dict[str, Any]]:
        """How many groups there should be, and no state for Serve to keep."""
        now = self._called_at = self._clock()
        if self._watch is None or not self._watch.is_alive():
            self._watch = threading.Thread(target=self._look_on, name="books-watch", daemon=True)
            self._watch.start()
        return self._decide(replicas.target_num_replicas, now), {}

    def look(self) -> None:
        """Ask for the books once."""
        self._seen = (self._clock(), self._ask(self._model, self._places))

    def _decide(self, target: int, now: float) -> int:
        seen = self._seen
        if seen is None or now - seen[0] > STALE_SECONDS:
            return target  # nobody knows what is going on: the least that can be done is nothing
        if self._decided_at is not None and now - self._decided_at < LOOK_SECONDS:
            return target
        self._decided_at = now
        load = seen[1]
        if len(load.groups) > target:
            return target  # one is going, and has not begun to drain
        load = replace(load, starting=target - len(load.groups))
        decision = decide_groups(self._policy, load, self._memory, now)
        self._memory = decision.memory
        if decision.groups != target:
            logger.warning(
                "%s: from %d to %d groups: %s",
                self._model,
                target,
                decision.groups,
                decision.reason,
            )
        return decision.groups

    def _look_on(self) -> None:
        while self._clock() - self._called_at < FORGOTTEN_SECONDS:
            try:
                self.look()
            except Exception as error:
                logger.info("the books cannot be seen at the moment: %r", error)
            time.sleep(LOOK_SECONDS)


def _ask_central(model: str, places: int) -> ClusterLoad:
    # Imported here: only the process that runs Serve's controller is part of a cluster.
    import ray

    from blockyard.cluster.actors import CENTRAL_NAME, NAMESPACE

    if not ray.is_initialized():
        raise RuntimeError("this process is no part of a Ray cluster")  # or one would be started
    central = ray.get_actor(CENTRAL_NAME, namespace=NAMESPACE)
    answer: Any = central.load.remote(model, places)
    load: ClusterLoad = ray.get(answer, timeout=ANSWER_SECONDS)
    return load
