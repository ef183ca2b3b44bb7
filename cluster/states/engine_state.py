"""One engine's end of model states: its group becomes what the central scheduler says.

Orders are carried out one after another, and each is checked again here, where the files are.
Knows no ranks and no wires.
"""

import asyncio
import logging
from pathlib import Path

from blockyard.cluster.adapters.engine_adapters import EngineAdapters
from blockyard.cluster.group import GroupLost
from blockyard.cluster.resting import Rest, Weights, WeightsNotLoaded, refuse_other_shape
from blockyard.cluster.states.model_state import STARTED, Became, Become, ModelState
from blockyard.cluster.states.weight_files import OutsideRoot, weights_under
from blockyard.scheduler.request import RefusalCode
from blockyard.workers.adapter_description import AdapterRefused
from blockyard.workers.description import ModelFilesError

__all__ = ["EngineState"]

logger = logging.getLogger(__name__)


class EngineState:
    """What one group is.

    Args:
        rest: of the engine.
        started_with: directory of the weights that the model goes by.
        weights_root: directory that other weights must be in; None: no others are loaded.
        state: what it is at first.
        adapters: of the engine; None: there are none.
    """

    def __init__(
        self,
        rest: Rest,
        started_with: str,
        weights_root: str | None,
        state: ModelState = STARTED,
        adapters: EngineAdapters | None = None,
    ) -> None:
        self._adapters = adapters
        self._rest = rest
        self._root = Path(weights_root) if weights_root is not None else None
        self._started_with = started_with
        self._state = state
        self._changing = asyncio.Lock()

    @property
    def state(self) -> ModelState:
        """What the group is, or was until the change that is under way."""
        return self._state

    @property
    def resting(self) -> bool:
        """Whether it computes nothing: asleep, or changing."""
        return self._rest.asleep

    async def become(self, asked: Become) -> Became:
        """Carry an order out, or say whether it could be."""
        try:
            async with self._changing:
                weights = await asyncio.to_thread(self._checked, asked.state)
                if not asked.rehearse:
                    await self._change(asked.state, weights)
                    # While it sleeps they are kept as they are; waking says again which are wanted.
                    if self._adapters is not None and not asked.state.asleep:
                        await self._adapters.become(asked.state.adapters)
                    self._state = asked.state
        except (OutsideRoot, ValueError, ModelFilesError, AdapterRefused) as error:
            message = str(error)
            return self._refused(asked, RefusalCode.INVALID, message)
        except (WeightsNotLoaded, GroupLost) as error:
            logger.warning("the group did not become what was asked for: %s", error)
            reason = "the weights could not be loaded" if asked.state.directory else "it is lost"
            return self._refused(asked, RefusalCode.UNAVAILABLE, reason)
        except Exception:
            # Whoever asked waits for an answer, and with it whoever asks next.
            logger.exception("an order was not carried out")
            reason = "what was asked for could not be done; its log tells why"
            return self._refused(asked, RefusalCode.UNAVAILABLE, reason)
        return Became(asked.ticket, self._state)

    def _checked(self, state: ModelState) -> Weights:
        """The weights that are asked for.

        Raises:
            OutsideRoot, ValueError, ModelFilesError: they are not to be loaded, or cannot be.
        """
        if state.version == self._rest.weights.version:
            return self._rest.weights
        if not state.directory:
            return Weights(self._started_with, state.version)
        directory = weights_under(self._root, state.directory)
        refuse_other_shape(self._started_with, str(directory), called=state.directory)
        return Weights(str(directory), state.version)

    async def _change(self, state: ModelState, weights: Weights) -> None:
        rest = self._rest
        if state.asleep:
            # What it wakes with is said when it is woken.
            if not rest.asleep:
                await rest.sleep()
        elif weights != rest.weights:
            await rest.update(weights)
        elif rest.asleep:
            await rest.wake()

    def _refused(self, asked: Become, code: RefusalCode, message: str) -> Became:
        return Became(asked.ticket, self._state, code, message)
