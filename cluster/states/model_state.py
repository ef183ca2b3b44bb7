"""What the groups of one model are to be: awake or asleep, with which weights. Values and messages.

The central scheduler holds what each model is to be; an engine tells what its group is.
"""

import msgspec

from blockyard.scheduler.request import RefusalCode

__all__ = ["STARTED", "Became", "Become", "ModelState", "Order", "Ordered"]


class ModelState(msgspec.Struct, frozen=True, array_like=True):
    """One model's.

    Attributes:
        generation: grows with every order; the later one counts.
        asleep: memory of weights and blocks is given back.
        directory: of the weights; empty for those that the model was started with.
        version: what these weights are called in the names of blocks; two never share it.
    """

    generation: int = 0
    asleep: bool = False
    directory: str = ""
    version: str = ""


STARTED = ModelState()
"""As every group starts."""


class Become(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Central scheduler to engine: your group is to be so. With `rehearse`: say whether it can."""

    ticket: int
    state: ModelState
    rehearse: bool = False


class Became(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Engine to central scheduler: what the group is now, and why not what was asked for."""

    ticket: int
    state: ModelState
    code: RefusalCode | None = None
    message: str = ""


class Order(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ingress to central scheduler: have all groups of a model sleep, or be awake.

    `directory` is of weights to wake with; None: those they have.
    """

    ticket: int
    model: str
    asleep: bool
    directory: str | None = None


class Ordered(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Central scheduler to ingress: what that many groups are now, or why not what was asked."""

    ticket: int
    state: ModelState
    groups: int
    code: RefusalCode | None = None
    message: str = ""
