"""Puts an engine's group to rest, its memory given back, and wakes it: with other weights if asked.

Requests are kept: those that had begun are computed again from their tokens once the group is
awake, those that come meanwhile wait, and the prefix index begins empty. Knows no ranks: who made
the group says how its memory is freed and how it is loaded. Units: none.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.cluster.group import Group
from blockyard.cluster.succession import Succession
from blockyard.workers.description import ModelFilesError

__all__ = ["Rest", "Weights", "WeightsNotLoaded", "refuse_other_shape"]

logger = logging.getLogger(__name__)

_NOT_OF_THE_SHAPE = frozenset(
    {"_name_or_path", "dtype", "quantization_config", "torch_dtype", "transformers_version"}
)


class WeightsNotLoaded(Exception):
    """Other weights could not be loaded; the group goes on with those it had."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Where a model's weights are, and what they are called in the names of blocks.

    No two are called the same, or blocks of one would be found for the other.
    """

    directory: str
    version: str = ""


class Rest:
    """Of one engine, whose loop must run.

    Args:
        succession: of the engine.
        free: closes the group and gives back the memory of weights and blocks.
        load: loads weights and answers a group with empty pools of the same size; called again
            with those before if it fails.
        weights: those that are loaded.
    """

    def __init__(
        self,
        succession: Succession,
        free: Callable[[], Awaitable[None]],
        load: Callable[[Weights], Awaitable[Group]],
        weights: Weights,
    ) -> None:
        self._succession = succession
        self._free = free
        self._load = load
        self._weights = weights
        self._waking: asyncio.Future[Weights] | None = None
        self._change: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    @property
    def asleep(self) -> bool:
        """Whether the group rests, or is about to."""
        return self._waking is not None

    @property
    def weights(self) -> Weights:
        """Those that are loaded, or, in sleep, that a wake loads."""
        return self._weights

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
            return await self._woken(await waking)

        change = self._change = asyncio.create_task(self._succession.ask(rest))
        asleep = asyncio.create_task(freed.wait())
        await asyncio.wait((change, asleep), return_when=asyncio.FIRST_COMPLETED)
        if change.done():  # only by failing: nobody has woken it
            asleep.cancel()
            self._waking = None
            change.result()

    async def wake(self, weights: Weights | None = None) -> None:
        """Load the model again and go on; returns when the engine has its group.

        Args:
            weights: others of the same shape; None: those it had.

        Raises:
            RuntimeError: it does not sleep.
            ValueError, ModelFilesError: the other weights are of another shape or not there; it
                sleeps on.
            WeightsNotLoaded: it is awake with those it had.
            GroupLost: it could not be loaded; the engine is lost.
        """
        if self._waking is None or self._change is None:
            raise RuntimeError("the model does not sleep; put it to sleep first")
        if weights is not None:
            refuse_other_shape(self._weights.directory, weights.directory)
        self._failure = None
        self._waking.set_result(weights or self._weights)
        try:
            await self._change
        finally:
            self._waking = None
        if self._failure is not None:
            raise WeightsNotLoaded(
                f"they could not be loaded ({self._failure}); the model goes on with those it had"
            ) from self._failure

    async def update(self, weights: Weights) -> None:
        """Go on with other weights of the same shape, awake or asleep.

        A request that had begun keeps its tokens and goes on under the new weights.

        Raises:
            ValueError, ModelFilesError, WeightsNotLoaded, GroupLost: see `wake`; with the first two
                nothing was changed.
        """
        refuse_other_shape(self._weights.directory, weights.directory)
        if not self.asleep:
            await self.sleep()
        await self.wake(weights)

    async def _woken(self, wanted: Weights) -> Group:
        """The group with the weights that are wanted, else with those it had."""
        try:
            group = await self._load(wanted)
        except Exception as error:
            if wanted == self._weights:
                raise
            logger.warning("the weights stay as they were: %r", error)
            self._failure = error
            return await self._load(self._weights)
        self._weights = wanted
        return group


def refuse_other_shape(model_dir: str, other_dir: str, called: str = "") -> None:
    """Refuse weights that could not take the place of those of `model_dir`.

    Args:
        model_dir, other_dir: of the two.
        called: what the other is called in messages; its own name by default.

    Raises:
        ValueError: their configuration differs, with where.
        ModelFilesError: there is none, or no weights that could be read without running code.
    """
    called = called or other_dir
    own, other = _config(model_dir, model_dir), _config(other_dir, called)
    if _has_weights(model_dir) and not _has_weights(other_dir):
        raise ModelFilesError(f"{called} holds no *.safetensors files")
    for field in sorted(own.keys() | other.keys()):
        if field not in _NOT_OF_THE_SHAPE and own.get(field) != other.get(field):
            raise ValueError(
                f"the weights in {called} are of another shape: {field} is "
                f"{other.get(field)!r}, not {own.get(field)!r}; start a server for them"
            )


def _has_weights(model_dir: str) -> bool:
    return any(Path(model_dir).glob("*.safetensors"))  # the witness has none


def _config(model_dir: str, called: str) -> dict[str, Any]:
    path = Path(model_dir) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFilesError(f"{called}/config.json cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelFilesError(f"{called}/config.json cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelFilesError(f"{called}/config.json is not a JSON object")
    return config
