"""Runs a Hugging Face decoder over one packed batch, with attention given from outside.

Knows nothing of requests, blocks or sampling. With `loader.py` it is all that touches the
modelling code of transformers. Units: tokens.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

from blockyard.workers.attention import LayerAttention
from blockyard.workers.contract import AttentionShape, ContractProbe, UnsupportedModel

__all__ = ["DecoderModel"]

_PROBE_TOKENS = 2


class DecoderModel:
    """A loaded decoder.

    Attributes:
        attention: shape of its attention, as seen by the probe.
        vocab_size: width of the logits.
        device, dtype: of the weights.

    Args:
        model: the loaded model, its attention set to ours.
        context_tokens: longest context that will be used.

    Raises:
        UnsupportedModel: its layers do not use attention in the way ours can serve.
    """

    def __init__(self, model: PreTrainedModel, context_tokens: int) -> None:
        self._model = model
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        text = model.config.get_text_config()
        self.vocab_size = int(text.vocab_size)
        self.attention = self._probe(int(text.num_hidden_layers), context_tokens)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights; tied ones count once."""
        return sum(parameter.nbytes for parameter in self._model.parameters())

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        layer_attention: LayerAttention,
    ) -> torch.Tensor:
        """One forward pass over packed requests.

        Args:
            input_ids, positions: int64 `[tokens]`, all requests one after the other.
            wanted: int64 `[rows]`, index of each token whose logits are needed.
            layer_attention: attention of this step.

        Returns:
            Logits `[rows, vocabulary]`.
        """
        output: Any = self._model(
            input_ids=input_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=wanted,
            layer_attention=layer_attention,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _probe(self, layers: int, context_tokens: int) -> AttentionShape:
        probe = ContractProbe(layers, context_tokens)
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
