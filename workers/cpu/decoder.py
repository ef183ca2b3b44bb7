"""A whole decoder of the Llama family as one native call a step, with packed weights.

Rows with adapters and without are computed in the same call. Between ranks, where products must be
summed, it is two calls a layer. Takes over the weights of
the module it is made from. float32 inside. Units: tokens.
"""

import weakref
from collections.abc import Callable, Mapping
from ctypes import Array, byref
from functools import partial
from typing import Any

import torch
from torch import nn

from blockyard.cuda.backend import AttentionForm
from blockyard.workers.adapter_rows import AdapterStack, StepRows
from blockyard.workers.attention import CachedAttention
from blockyard.workers.cpu.attention import NativeStepAttention, native_form, native_layer
from blockyard.workers.cpu.library import (
    NativeDecoderLayer,
    NativeForm,
    NativeLayer,
    NativeModel,
    NativePool,
)
from blockyard.workers.cpu.low_rank import AdapterTable
from blockyard.workers.cpu.packed import PANEL_COLUMNS, PackedLinear, WeightStorage
from blockyard.workers.cpu.recognise import (
    DecoderParts,
    LayerParts,
    NotRecognised,
    linear_names,
)
from blockyard.workers.kv_layers import KVLayers

__all__ = ["NativeDecoder"]


class NativeDecoder:
    """Runs the decoder that `parts` describe.

    Args:
        pool: the threads it runs on.
        parts: modules of the original, on the CPU in float32.
        forms: each layer's attention.
        head_dim: size of a head.
        context_tokens: positions are below it.
        storage: of the packed weights.

    Attributes:
        storage: of the packed weights.
        layers, head: the packed weights.

    Raises:
        NotRecognised: rotary positions are of another kind.
    """

    def __init__(
        self,
        pool: NativePool,
        parts: DecoderParts,
        forms: tuple[AttentionForm, ...],
        head_dim: int,
        context_tokens: int,
        storage: WeightStorage,
    ) -> None:
        self.storage = storage
        self.layers = [_PackedLayer(pool, layer, storage) for layer in parts.layers]
        # Ranks end these layers in their own ways, and add biases once.
        self._divided = hasattr(parts.layers[0].output, "reduce")
        # The head is the embedding too: in 4 bits it alone costs some 5 % of perplexity.
        head_storage = WeightStorage.INT8 if storage is WeightStorage.INT4 else storage
        self.head = PackedLinear(pool, [parts.head.weight], head_storage, parts.head.bias)
        self._assemble: Callable[..., Any] | None = getattr(parts.head, "assemble", None)
        self._tied = parts.tied  # no more once the original has given up its head
        self._embed = self._embedding_of(parts)
        self._parts = parts
        self._pool = pool
        self._context_tokens = context_tokens
        self._forms = (NativeForm * len(forms))(*map(native_form, forms))
        self._form_tensors = [form.sinks for form in forms]  # the library has their addresses
        self._cache_layers = (NativeLayer * len(forms))()
        self._cache: weakref.ref[KVLayers] | None = None
        self._rotary = _rotary_table(parts.rotary, context_tokens)
        self._norm = _norm_weight(parts.norm)
        self._adapters = AdapterTable(
            [name for index in range(len(parts.layers)) for name in linear_names(index)],
            [
                (linear.in_features, linear.out_features)
                for layer in parts.layers
                for linear in layer.linears()
            ],
        )
        model = self._describe(head_dim)
        self._address: int = pool.call.by_decoder_new(byref(model))
        weakref.finalize(self, pool.call.by_decoder_free, self._address)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        packed = [linear for layer in self.layers for linear in layer.linears()]
        return sum(linear.nbytes for linear in [*packed, self.head])

    @property
    def keeps_embedding(self) -> bool:
        """Whether the original's embedding stays in use; else the packed head is looked up in."""
        return not self._tied

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        attention: CachedAttention,
        adapter_rows: StepRows | None = None,
        stacks: Mapping[str, AdapterStack] | None = None,
    ) -> torch.Tensor:
        """Logits `[wanted, vocabulary]`; see `DecoderModel.forward`.

        Raises:
            ValueError: a position lies outside the context.
            TypeError: the step's attention is not native.
        """
        native = attention.step
        if not isinstance(native, NativeStepAttention):
            raise TypeError(f"{type(native).__name__} is no native attention")
        last = int(positions.numpy().max())
        if last >= self._context_tokens:
            raise ValueError(f"position {last} lies outside a context of {self._context_tokens}")
        call, pool = self._pool.call, self._pool.address
        rows = wanted.shape[0]
        embedded = self._embed(input_ids).contiguous() if self._embed is not None else None
        call.by_decoder_begin(
            pool,
            self._address,
            byref(native.step),
            input_ids.data_ptr(),
            positions.data_ptr(),
            wanted.data_ptr(),
            rows,
            embedded.data_ptr() if embedded is not None else None,
        )
        if adapter_rows is not None:
            slots = adapter_rows.slots_of_tokens
            call.by_decoder_adapt(self._address, slots.ctypes.data, self._adapters.of(stacks or {}))
        layers = self._layers_of(attention.cache)
        if self._divided:
            self._run_halves(layers, input_ids.shape[0])
        else:
            call.by_decoder_run(pool, self._address, layers, self._forms)
        columns = self.head.columns
        width = -(-columns // PANEL_COLUMNS) * PANEL_COLUMNS
        logits = torch.empty(rows, width)
        if rows:
            call.by_decoder_finish(pool, self._address, logits.data_ptr(), width)
        logits = logits[:, :columns]
        return self._assemble(logits) if self._assemble is not None else logits

    def _embedding_of(self, parts: DecoderParts) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """What looks tokens up; None leaves it to the library, which has the head."""
        if not parts.tied:
            return parts.embedding
        if not self._divided:
            return None
        look_up_by: Any = parts.embedding.look_up_by
        return partial(look_up_by, self.head.look_up)

    def _run_halves(self, layers: "Array[NativeLayer]", rows: int) -> None:
        """Layers whose products are summed over ranks before they are added."""
        call, pool, own = self._pool.call, self._pool.address, self._address
        for index, (parts, layer, form) in enumerate(
            zip(self._parts.layers, layers, self._forms, strict=True)
        ):
            output: Any = parts.output
            down: Any = parts.down
            product = torch.empty(rows, self.head.inputs)
            call.by_decoder_attend(pool, own, index, byref(layer), byref(form), product.data_ptr())
            # The last layer's attention leaves the wanted rows alone.
            total = output.reduce(product[: call.by_decoder_rows(own)]).contiguous()
            call.by_decoder_add(pool, own, total.data_ptr())
            product = torch.empty_like(total)
            call.by_decoder_feed_forward(pool, own, index, product.data_ptr())
            total = down.reduce(product).contiguous()
            call.by_decoder_add(pool, own, total.data_ptr())

    def _layers_of(self, cache: KVLayers) -> "Array[NativeLayer]":
        """The pool's layers for the library, found once for each pool."""
        if self._cache is None or self._cache() is not cache:
            for index in range(len(self._cache_layers)):
                self._cache_layers[index] = native_layer(cache.layer(index))
            self._cache = weakref.ref(cache)
        return self._cache_layers

    def _describe(self, head_dim: int) -> NativeModel:
        first = self._parts.layers[0]
        layers = (NativeDecoderLayer * len(self.layers))(*(layer.native() for layer in self.layers))
        cosines, sines = self._rotary
        return NativeModel(
            layers,
            self._norm.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            self.head.matrix(),
            self.head.inputs,
            _epsilon(self._parts.norm),
            _epsilon(first.query_norm) if first.query_norm is not None else 0.0,
            len(self.layers),
            first.query.out_features // head_dim,
            first.key.out_features // head_dim,
            head_dim,
            cosines.shape[1],
        )


class _PackedLayer:
    """One layer's packed linears and its norms."""

    def __init__(self, pool: NativePool, parts: LayerParts, storage: WeightStorage) -> None:
        def packed(*linears: nn.Linear, alternating: bool = False) -> PackedLinear:
            biases = [linear.bias for linear in linears]
            bias = None
            if any(one is not None for one in biases) and not hasattr(linears[0], "reduce"):
                bias = torch.cat(
                    [
                        one if one is not None else torch.zeros(linear.out_features)
                        for one, linear in zip(biases, linears, strict=True)
                    ]
                )
            weights = [linear.weight for linear in linears]
            return PackedLinear(pool, weights, storage, bias, alternating)

        self.projections = packed(parts.query, parts.key, parts.value)
        self.output = packed(parts.output)
        self.gate_up = packed(parts.gate, parts.up, alternating=True)
        self.down = packed(parts.down)
        norms = (
            *(parts.attention_norm, parts.feed_forward_norm),
            *(parts.query_norm, parts.key_norm),
        )
        self._norms = [None if norm is None else _norm_weight(norm) for norm in norms]

    def linears(self) -> tuple[PackedLinear, ...]:
        """All of the layer's."""
        return self.projections, self.output, self.gate_up, self.down

    def native(self) -> NativeDecoderLayer:
        """For the library; valid while this object lives."""
        return NativeDecoderLayer(
            *(linear.matrix() for linear in self.linears()),
            *(None if norm is None else norm.data_ptr() for norm in self._norms),
        )


def _norm_weight(norm: nn.Module) -> torch.Tensor:
    weight = norm.weight
    assert isinstance(weight, torch.Tensor)
    return weight.float().contiguous()


def _epsilon(norm: nn.Module) -> float:
    epsilon = norm.variance_epsilon
    assert isinstance(epsilon, float)
    return epsilon


def _rotary_table(rotary: nn.Module, context_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines by position, float32 `[context, rotated / 2]`, as the module makes them."""
    positions = torch.arange(context_tokens)[None]
    cosines, sines = (table[0] for table in rotary(torch.zeros(1), positions))
    half = cosines.shape[-1] // 2
    if not torch.equal(cosines[:, :half], cosines[:, half:]):
        raise NotRecognised("rotary positions do not turn halves of a head")
    return cosines[:, :half].contiguous(), sines[:, :half].contiguous()
