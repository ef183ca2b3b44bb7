"""Runs a Hugging Face decoder over one packed batch, with attention given from outside.

Knows nothing of requests, blocks or sampling. With `loader.py` it is all that touches the
modelling code of transformers. Units: tokens.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from blockyard.workers.adapter_rows import AdapterStack, StepRows
from blockyard.workers.adapter_sites import LinearSites
from blockyard.workers.adapters import AdapterBank
from blockyard.workers.attention import CachedAttention, LayerAttention
from blockyard.workers.contract import (
    AttentionShape,
    ContractProbe,
    UnsupportedModel,
    expected_windows,
)
from blockyard.workers.sharded_layers import HeadLinear

__all__ = ["DecoderModel", "FusedDecoder"]

_PROBE_TOKENS = 2


class FusedDecoder(Protocol):
    """Computes what the modules of a model would, in their place."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights it keeps for itself."""
        ...

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        attention: CachedAttention,
        adapter_rows: StepRows | None = None,
        stacks: Mapping[str, AdapterStack] | None = None,
    ) -> torch.Tensor:
        """See `DecoderModel.forward`; `stacks` are the adapters by the linears they add to."""
        ...


class DecoderModel:
    """A loaded decoder.

    Attributes:
        attention: shape of its attention, as seen by the probe.
        vocab_size: width of the logits.
        device, dtype: of the weights.
        sites: linears to which adapters may add.

    Args:
        model: the loaded model, its attention set to ours.
        context_tokens: longest context that will be used.
        sites: see above; none: it takes no adapters.

    Raises:
        UnsupportedModel: its layers do not use attention in the way ours can serve.
    """

    def __init__(
        self, model: PreTrainedModel, context_tokens: int, sites: LinearSites | None = None
    ) -> None:
        self._model = model
        self.sites: LinearSites = sites or {}
        self._adapters: AdapterBank | None = None
        self._fused: FusedDecoder | None = None
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        text = model.config.get_text_config()
        _settle_rotary(model, context_tokens)
        self.vocab_size = int(text.vocab_size)
        self.attention = self._probe(
            ContractProbe(
                int(text.num_hidden_layers), context_tokens, expected_windows(text.to_dict())
            )
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights; tied ones count once."""
        own = sum(parameter.nbytes for parameter in self._model.parameters())
        return own + (self._fused.weight_bytes if self._fused is not None else 0)

    @property
    def module(self) -> PreTrainedModel:
        """The model as transformers made it."""
        return self._model

    def divide_logits(self) -> int | None:
        """Have logits stay divided among ranks, each with its own part of the vocabulary.

        Returns:
            The width of whole rows; None where every rank has them whole.
        """
        for module in self._model.modules():
            if isinstance(module, HeadLinear):
                module.apart = True
                return module.vocabulary
        return None

    def fuse(self, fused: FusedDecoder) -> None:
        """Have `fused` compute every step from now on; the modules may lose their weights."""
        self._fused = fused

    def adapt(self, adapters: AdapterBank) -> None:
        """Have steps find their adapters there."""
        self._adapters = adapters

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        layer_attention: LayerAttention,
        adapter_rows: StepRows | None = None,
    ) -> torch.Tensor:
        """One forward pass over packed requests.

        Args:
            input_ids, positions: int64 `[tokens]`, all requests one after the other.
            wanted: int64 `[rows]`, index of each token whose logits are needed.
            layer_attention: attention of this step.
            adapter_rows: tokens that have an adapter; None: there are none.

        Returns:
            Logits `[rows, vocabulary]`.
        """
        step = (input_ids, positions, wanted, layer_attention)
        if self._fused is not None:
            assert isinstance(layer_attention, CachedAttention), "probes come before"
            stacks = self._adapters.stacks if self._adapters is not None else None
            return self._fused.forward(
                input_ids, positions, wanted, layer_attention, adapter_rows, stacks
            )
        if adapter_rows is None:
            return self._run_modules(*step)
        assert self._adapters is not None, "who made the rows has them"
        with self._adapters.during(adapter_rows):
            return self._run_modules(*step)

    def _run_modules(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        layer_attention: LayerAttention,
    ) -> torch.Tensor:
        output: Any = self._model(
            input_ids=input_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=wanted,
            layer_attention=layer_attention,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _probe(self, probe: ContractProbe) -> AttentionShape:
        tokens = torch.arange(_PROBE_TOKENS, device=self.device)
        wanted = tokens[-1:]
        try:
            with torch.inference_mode():
                logits = self.forward(tokens, tokens, wanted, probe)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise UnsupportedModel(
                f"{type(self._model).__name__} cannot run a packed batch: {error}"
            ) from error
        shape = probe.finish()
        if logits.shape[0] != 1:
            raise UnsupportedModel(
                f"{type(self._model).__name__} computes logits of every token, not of chosen ones"
            )
        return shape


def _settle_rotary(model: PreTrainedModel, context_tokens: int) -> None:
    """Have rotary frequencies that depend on length be those of the longest context, once for all.

    transformers takes the longest position of the batch, so a request's keys would change with its
    neighbours, and blocks in the cache would no longer be what a request would compute.
    """
    for module in model.modules():
        rotary: Any = module
        kinds = getattr(rotary, "rope_type", None)
        by_layer = kinds if isinstance(kinds, dict) else {None: kinds}
        if not any(_depends_on_length(kind) for kind in by_layer.values()):
            continue
        positions = torch.tensor([[0, context_tokens - 1]], device=model.device)
        sample = torch.zeros(1, device=model.device, dtype=model.dtype)
        for layer_type in by_layer:
            rotary(sample, positions, *(() if layer_type is None else (layer_type,)))
        settled = dict.fromkeys(by_layer, "settled")
        rotary.rope_type = settled if isinstance(kinds, dict) else "settled"


def _depends_on_length(kind: object) -> bool:
    return isinstance(kind, str) and ("dynamic" in kind or kind == "longrope")
