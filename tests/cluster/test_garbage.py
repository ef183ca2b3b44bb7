"""Steps are not held up by walks for garbage; cycles are still found."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from blockyard.cluster.garbage import collect_rarely


@pytest.fixture
def set_up() -> Iterator[None]:
    thresholds = gc.get_threshold()
    collect_rarely()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


class _Node:
    def __init__(self) -> None:
        self.self = self


def _walks(generation: int, num_objects: int) -> int:
    before: int = gc.get_stats()[generation]["collections"]
    kept = [[number] for number in range(num_objects)]
    assert len(kept) == num_objects
    after: int = gc.get_stats()[generation]["collections"]
    return after - before


def test_a_big_step_has_no_walk_for_garbage() -> None:
    # In a process of its own: threads that other tests left make objects, too.
    code = (
        "import gc; from blockyard.cluster.garbage import collect_rarely; collect_rarely(); "
        "gc.collect(); before = gc.get_stats()[0]['collections']; "
        "kept = [[number] for number in range(4096)]; "
        "print(gc.get_stats()[0]['collections'] - before)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "0\n"


@pytest.mark.usefixtures("set_up")
def test_what_stays_is_not_walked() -> None:
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("set_up")
def test_a_cycle_is_freed_in_the_end() -> None:
    lost = weakref.ref(_Node())
    _walks(0, 50_000)
    assert lost() is None
