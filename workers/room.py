"""What a rank tells of itself once its model is loaded: room for blocks, and how fast it is.

Runs steps on pools of one block, so what they compute means nothing. Units: bytes, blocks.
"""

from collections.abc import Callable

import torch

from blockyard.workers.batch import FlatBatch
from blockyard.workers.config import WorkerConfig, WorkerProfile
from blockyard.workers.graph_setup import GraphSetup
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.memory import count_blocks, count_host_blocks, measure_peak
from blockyard.workers.model import DecoderModel
from blockyard.workers.profiling import largest_batch, measure_link, measure_prefill

__all__ = ["Compute", "measure_rank"]

Compute = Callable[[DecoderModel, KVCache, FlatBatch], object]
"""Runs a batch on a pool, to its end."""


def measure_rank(
    config: WorkerConfig,
    model: DecoderModel,
    geometry: KVGeometry,
    compute: Compute,
    setup: GraphSetup,
    adapter_bytes: int,
) -> WorkerProfile:
    """Measure this rank.

    Args:
        config: what it was told.
        model: loaded.
        geometry: of its blocks.
        compute: runs its steps, without graphs.
        setup: of its graphs.
        adapter_bytes: what adapters may take.

    Raises:
        NoRoom: the memory allowed does not hold one context.
    """
    device = model.device

    def runner() -> Callable[[FlatBatch], None]:
        """Runs batches on a cleared pool of one block."""
        cache = KVCache(geometry, 1, device)
        cache.clear()

        def run(batch: FlatBatch) -> None:
            with torch.inference_mode():
                compute(model, cache, batch)

        return run

    activation_bytes = graph_bytes = 0
    if config.num_blocks is not None:
        blocks = config.num_blocks
    else:
        largest = largest_batch(config, model.vocab_size, device)
        run = runner()
        activation_bytes = measure_peak(lambda: run(largest), device)
        del run  # its block
        with torch.inference_mode():
            graph_bytes = setup.measure()
        beside = activation_bytes + graph_bytes + adapter_bytes
        blocks = count_blocks(config, geometry.block_bytes, beside, device)
    host_blocks = count_host_blocks(config, geometry.block_bytes, blocks, device)
    return WorkerProfile(
        max_blocks=blocks,
        block_bytes=geometry.block_bytes,
        weight_bytes=model.weight_bytes,
        activation_bytes=activation_bytes,
        device=str(device),
        dtype=str(model.dtype).removeprefix("torch."),
        max_host_blocks=host_blocks,
        prefill_tokens_per_second=measure_prefill(config, device, runner()),
        link_bytes_per_second=(
            measure_link(geometry, min(blocks, host_blocks), device) if host_blocks else 0.0
        ),
        graph_bytes=graph_bytes,
    )
