"""Puts an engine's group to rest, its memory given back, and wakes it: with other weights if asked.

Requests are kept: those that had begun are computed again from their tokens once the group is
awake, those that come meanwhile wait, and the prefix index begins empty. Knows no ranks: who made
the group says how its memory is freed and how it is loaded. Units: none.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from blockyard.cluster.group import Group
from blockyard.cluster.succession import Succession
from blockyard.workers.description import ModelFilesError

__all__ = ["Rest", "refuse_other_shape"]

_NOT_OF_THE_SHAPE = frozenset(
    {"_name_or_path", "dtype", "quantization_config", "torch_dtype", "transformers_version"}
)


class Rest:
    """Of one engine, whose loop must run.

    Args:
        succession: of the engine.
        free: closes the group and gives back the memory of weights and blocks.
        load: loads the model of a directory, None being the one before, and answers a group with
            empty pools of the same size.
        model_dir: of the model that is loaded.
    """

    def __init__(
        self,
        succession: Succession,
        free: Callable[[], Awaitable[None]],
        load: Callable[[str | None], Awaitable[Group]],
        model_dir: str,
    ) -> None:
        self._succession = succession
        self._free = free
        self._load = load
        self._model_dir = model_dir
        self._waking: asyncio.Future[str | None] | None = None
        self._change: asyncio.Task[None] | None = None

    @property
    def asleep(self) -> bool:
        """Whether the group rests, or is about to."""
        return self._waking is not None

    async def sleep(self) -> None:
        """Let steps under way end and free the memory; returns when it is free.

        Raises:
            RuntimeError: it sleeps already.
            GroupLost: the memory could not be freed; the engine is lost.
        """
        if self._waking is not None:
            raise RuntimeError("the model sleeps already; wake it first")
        freed = asyncio.Event()
        waking = self._waking = asyncio.get_running_loop().create_future()

        async def rest() -> Group:
            await self._free()
            freed.set()
            return await self._load(await waking)

        change = self._change = asyncio.create_task(self._succession.ask(rest))
        asleep = asyncio.create_task(freed.wait())
        await asyncio.wait((change, asleep), return_when=asyncio.FIRST_COMPLETED)
        if change.done():  # only by failing: nobody has woken it
            asleep.cancel()
            self._waking = None
            change.result()

    async def wake(self, model_dir: str | None = None) -> None:
        """Load the model again and go on; returns when the engine has its group.

        Args:
            model_dir: of other weights of the same shape; None: those it had.

        Raises:
            RuntimeError: it does not sleep.
            ValueError, ModelFilesError: the other weights are of another shape or not there; it
                sleeps on.
            GroupLost: it could not be loaded; the engine is lost.
        """
        if self._waking is None or self._change is None:
            raise RuntimeError("the model does not sleep; put it to sleep first")
        if model_dir is not None:
            refuse_other_shape(self._model_dir, model_dir)
            self._model_dir = model_dir
        self._waking.set_result(model_dir)
        try:
            await self._change
        finally:
            self._waking = None

    async def update(self, model_dir: str) -> None:
        """Go on with other weights of the same shape, awake or asleep.

        A request that had begun keeps its tokens and goes on under the new weights.

        Raises:
            ValueError, ModelFilesError: see `wake`; nothing was changed.
            GroupLost: they could not be loaded; the engine is lost.
        """
        refuse_other_shape(self._model_dir, model_dir)
        if not self.asleep:
            await self.sleep()
        await self.wake(model_dir)


def refuse_other_shape(model_dir: str, other_dir: str) -> None:
    """Refuse weights that could not take the place of those of `model_dir`.

    Raises:
        ValueError: their configuration differs, with where.
        ModelFilesError: there is none.
    """
    own, other = _config(model_dir), _config(other_dir)
    for field in sorted(own.keys() | other.keys()):
        if field not in _NOT_OF_THE_SHAPE and own.get(field) != other.get(field):
            raise ValueError(
                f"the weights in {other_dir} are of another shape: {field} is "
                f"{other.get(field)!r}, not {own.get(field)!r}; start a server for them"
            )


def _config(model_dir: str) -> dict[str, Any]:
    path = Path(model_dir) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelFilesError(f"{path} is not a JSON object")
    return config
