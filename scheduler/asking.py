"""A request that asks for a group, as far as it depends on that which one it is given, and when.

Units: tokens, blocks, places; seconds on the clock of whoever is asked.
"""

from dataclasses import dataclass

__all__ = ["Asking"]


@dataclass(slots=True, eq=False)
class Asking:
    """One request; equal to itself alone.

    Attributes:
        tokens: known of it, all of which it must hold.
        places: that it needs at once.
        block_keys: of the prompt's full blocks of `block_size`.
        arrived_at: when its client sent it.
        deadline_at: when its client gives up; None: never.
        outputs: tokens that its answer has at the least.
        number: among those that were queued; set by the queue.
        waits: whether it is in a queue; set by the queue.
    """

    request_id: str
    tokens: int
    priority: int = 0
    tenant: str = ""
    places: int = 1
    block_keys: tuple[bytes, ...] = ()
    block_size: int = 0
    arrived_at: float = 0.0
    deadline_at: float | None = None
    outputs: int = 1
    number: int = 0
    waits: bool = False
