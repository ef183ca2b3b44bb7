"""What the groups of one model are to be: awake or asleep, with which weights. Values and messages.

The central scheduler holds what each model is to be; an engine tells what its group is.
"""

import msgspec

from blockyard.scheduler.request import RefusalCode, RequestRefused
from blockyard.workers.adapter_description import AdapterDescription

__all__ = [
    "STARTED",
    "Became",
    "Become",
    "ModelState",
    "Order",
    "Ordered",
    "refuse_unless_done",
]


class ModelState(msgspec.Struct, frozen=True, array_like=True):
    """One model's.

    Attributes:
        generation: grows with every order; the later one counts.
        asleep: memory of weights and blocks is given back.
        directory: of the weights; empty for those that the model was started with.
        version: what these weights are called in the names of blocks; two never share it.
        adapters: that requests may ask for.
    """

    generation: int = 0
    asleep: bool = False
    directory: str = ""
    version: str = ""
    adapters: tuple[AdapterDescription, ...] = ()


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

    `directory` is of weights to wake with; None: those they have. With an adapter to `load`, or the
    name of one to `unload`, they stay asleep or awake as they are.
    """

    ticket: int
    model: str
    asleep: bool
    directory: str | None = None
    load: AdapterDescription | None = None
    unload: str = ""


class Ordered(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Central scheduler to ingress: what that many groups are now, or why not what was asked."""

    ticket: int
    state: ModelState
    groups: int
    code: RefusalCode | None = None
    message: str = ""


def refuse_unless_done(told: Ordered | None) -> None:
    """Raise what became of an order for an adapter, unless it was carried out.

    Raises:
        RequestRefused: why not; `field` is `adapter` when the adapter is at fault.
    """
    if told is None:
        raise RequestRefused(
            RefusalCode.UNAVAILABLE,
            "whoever has this done is not there at the moment; see what is served, and try again",
            "model",
        )
    if told.code is not None:
        field = {RefusalCode.INVALID: "adapter", RefusalCode.EXISTS: ""}.get(told.code, "model")
        raise RequestRefused(told.code, told.message, field)
