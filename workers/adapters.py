"""The adapters that a rank has loaded, and the linears of its model that add them.

One may be loaded or dropped while a step runs in another thread: a slot is filled before anybody
knows it, and whoever drops one has seen to it that no step uses it any more. Knows no requests.
Units: slots, bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from blockyard.workers.adapter_description import AdapterDescription, AdapterRefused
from blockyard.workers.adapter_rows import (
    NO_SLOT,
    AdapterStack,
    StepRows,
    add_to_rows,
    step_rows,
)
from blockyard.workers.adapter_sites import LinearSite, LinearSites
from blockyard.workers.adapter_weights import read_adapter

__all__ = ["AdapterBank", "Adds"]


class Adds(Protocol):
    """How rows of a step get what their adapters add; `add_to_rows` or its slow twin."""

    def __call__(
        self, output: torch.Tensor, inputs: torch.Tensor, stack: AdapterStack, rows: StepRows, /
    ) -> None:
        """Change `output` in place."""
        ...


class AdapterBank:
    """All adapters of one rank.

    Args:
        model: its linears add the adapters; they are left alone until one is loaded.
        sites: which linears there are.
        max_adapters: slots.
        max_rank: rank of every slot.
        dtype, device: of the matrices.
        add: how rows get what is added.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: LinearSites,
        max_adapters: int,
        max_rank: int,
        dtype: torch.dtype,
        device: torch.device,
        add: Adds = add_to_rows,
    ) -> None:
        self._model = model
        self._sites = sites
        self._max_adapters = max_adapters
        self._max_rank = max_rank
        self._dtype = dtype
        self._device = device
        self._add = add
        self._stacks: dict[str, AdapterStack] = {}
        self._slots: dict[str, int] = {}
        self._loading = Lock()
        self._rows: StepRows | None = None

    @property
    def loaded(self) -> tuple[str, ...]:
        """Ids of what is loaded."""
        return tuple(self._slots)

    @property
    def stacks(self) -> Mapping[str, AdapterStack]:
        """The matrices of each linear that adapters add to, by its name; only ever grows."""
        return self._stacks

    @property
    def most_bytes(self) -> int:
        """Bytes of all slots, once each linear has been added to."""
        columns = sum(site.own_inputs + site.own_outputs for site in self._sites.values())
        return self._max_adapters * self._max_rank * columns * self._dtype.itemsize

    def load(self, adapter: AdapterDescription) -> None:
        """Load an adapter; nothing happens when it is there already.

        Raises:
            AdapterRefused: it does not fit the model, its files have changed, or no slot is free.
        """
        with self._loading, torch.inference_mode():
            if adapter.adapter_id in self._slots:
                return
            free = sorted(set(range(self._max_adapters)) - set(self._slots.values()))
            if not free:
                raise AdapterRefused(
                    f"{len(self._slots)} adapters are loaded, this server takes "
                    f"{self._max_adapters}; unload one, or start it with a larger max_adapters "
                    "(--max-loras)"
                )
            pairs = read_adapter(adapter, self._sites, self._max_rank, self._dtype)
            slot = free[0]
            for stack in self._stacks.values():
                stack.ranks[slot] = 0
                stack.down[slot].zero_()
                stack.up[slot].zero_()
            for name, pair in pairs.items():
                stack = self._stack(self._sites[name])
                rank = len(pair.down)
                stack.down[slot, :rank] = pair.down.to(self._device)
                stack.up[slot, :rank] = pair.up.to(self._device)
                stack.ranks[slot] = rank
            self._slots[adapter.adapter_id] = slot

    def drop(self, adapter_id: str) -> None:
        """Forget an adapter, which no step uses any more. Safe to call again."""
        with self._loading:
            self._slots.pop(adapter_id, None)

    def rows(self, adapter_ids: Sequence[str], counts: npt.NDArray[np.int32]) -> StepRows | None:
        """Which rows of a step have an adapter; None when none has.

        Args:
            adapter_ids: of each request, empty for the base model.
            counts: tokens of each request.

        Raises:
            KeyError: an adapter is not loaded.
        """
        if not any(adapter_ids):
            return None
        slots = [self._slots[each] if each else NO_SLOT for each in adapter_ids]
        return step_rows(slots, counts, self._max_rank, self._device)

    @contextmanager
    def during(self, rows: StepRows) -> Iterator[None]:
        """Have the model's linears add to these rows, in a step that is run inside."""
        if self._rows is not None:
            raise RuntimeError("a step runs already")
        self._rows = rows
        try:
            yield
        finally:
            self._rows = None

    def _stack(self, site: LinearSite) -> AdapterStack:
        """The matrices of a linear; from the first time on it adds them."""
        stack = self._stacks.get(site.name)
        if stack is None:
            shape = self._max_adapters, self._max_rank
            down, up = (
                torch.zeros(*shape, columns, dtype=self._dtype, device=self._device)
                for columns in (site.own_inputs, site.own_outputs)
            )
            ranks = torch.zeros(self._max_adapters, dtype=torch.int32)
            stack = self._stacks[site.name] = AdapterStack(down, up, ranks)
            layer: Any = self._model.get_submodule(site.name)
            # A layer whose products are summed over ranks adds before: the sum is of both.
            method = "product" if hasattr(layer, "product") else "forward"
            setattr(layer, method, partial(self._with_adapters, getattr(layer, method), stack))
        return stack

    def _with_adapters(self, plain: Any, stack: AdapterStack, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = plain(inputs)
        if self._rows is not None:
            width = output.shape[-1]
            self._add(
                output.view(-1, width), inputs.reshape(-1, inputs.shape[-1]), stack, self._rows
            )
        return output
