"""How a process that steps a scheduler looks for garbage: rarely, and not in what stays.

Python looks for cycles after so many new objects, which a step of a thousand requests makes
several times, and now and then it walks everything: pauses of tens of milliseconds between two
steps. Steps make no cycles; counts of references free what they drop at once.
"""

import gc

__all__ = ["collect_rarely"]

_NEW_OBJECTS = 30_000
"""Objects made and still there before Python looks through them. A step makes a few thousand; of
every hundred steps fewer than one is to wait for it."""


def collect_rarely() -> None:
    """Set this process up; call it once, when what stays has been made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
