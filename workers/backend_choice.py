"""Which backend a loaded model runs on: as configured, or the fastest that serves all its layers.

On a CPU its layers may become native with it. Knows no steps. Units: tokens.
"""

from blockyard.cuda.backend import AttentionBackend, HeadShape
from blockyard.workers.backends import backend_named, backend_of_gpu
from blockyard.workers.config import WorkerConfig
from blockyard.workers.contract import UnsupportedModel
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.model import DecoderModel

__all__ = ["choose_backend"]


def choose_backend(
    config: WorkerConfig, model: DecoderModel, geometry: KVGeometry, threads: int
) -> AttentionBackend:
    """The backend of a model.

    Args:
        config: what the rank was told.
        model: loaded; its layers may become native.
        geometry: of its blocks.
        threads: of a step on a CPU.

    Raises:
        ValueError: what is configured does not exist on this machine or device.
        UnsupportedModel: a layer needs what the backend does not have.
    """
    backend = _choose(config, model, geometry, threads)
    shape = _head_shape(model, geometry)
    for layer, form in enumerate(model.attention.forms):
        reason = backend.refusal(shape, form)
        if reason is not None:
            raise UnsupportedModel(f"layer {layer}: {reason}")
    return backend


def _choose(
    config: WorkerConfig, model: DecoderModel, geometry: KVGeometry, threads: int
) -> AttentionBackend:
    if model.device.type != "cpu" and config.weights != "auto":
        raise ValueError(f"weights is {config.weights!r}; on a GPU it can only be auto")
    if config.backend != "auto":
        return backend_named(config.backend, model.device)
    if model.device.type != "cpu":
        shape = _head_shape(model, geometry)
        return backend_of_gpu(model.device, shape, model.attention.forms)
    from blockyard.workers.cpu.fuse import put_on_cpu_path
    from blockyard.workers.cpu.packed import WeightStorage

    storage = WeightStorage.FP32 if config.weights == "auto" else WeightStorage(config.weights)
    path = put_on_cpu_path(model, threads, config.max_context_tokens, storage, geometry.dtype)
    return path.backend


def _head_shape(model: DecoderModel, geometry: KVGeometry) -> HeadShape:
    return HeadShape(
        heads=model.attention.heads,
        kv_heads=model.attention.kv_heads,
        head_dim=model.attention.head_dim,
        block_size=geometry.block_size,
        dtype=model.dtype,
        kv_dtype=geometry.dtype,
    )
