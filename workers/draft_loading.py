"""Loads a draft model beside the model that is served, on the same device and over the same ranks.

Whether their vocabularies fit was looked at before (`draft_description.py`). Knows no steps.
"""

from dataclasses import replace
from pathlib import Path

import torch

from blockyard.workers.backend_choice import choose_backend
from blockyard.workers.collectives import Communicator
from blockyard.workers.config import WorkerConfig
from blockyard.workers.contract import UnsupportedModel
from blockyard.workers.description import ModelFilesError
from blockyard.workers.draft_model import DraftModel
from blockyard.workers.kv_dtype import geometry_of
from blockyard.workers.progress import ProgressReporter

__all__ = ["load_draft"]


def load_draft(
    config: WorkerConfig,
    vocab_size: int,
    device: torch.device,
    threads: int,
    progress: ProgressReporter,
    communicator: Communicator,
) -> DraftModel:
    """Load this rank's part of the draft model.

    Args:
        config: of the rank.
        vocab_size: width of the served model's logits.
        device: of both models.
        threads: of a step on a CPU.
        progress: told of the load.
        communicator: this rank's end of its group.

    Raises:
        ModelFilesError, UnsupportedModel: it cannot be loaded or computed.
        ValueError: not with these options, or there is none.
    """
    # Imported here, because transformers takes seconds.
    from blockyard.workers.loader import load_model

    if config.draft_dir is None:
        raise ValueError("no draft model is configured")
    weights = config.weights if config.draft_weights == "auto" else config.draft_weights
    own = replace(config, model_dir=config.draft_dir, weights=weights)
    folder = Path(own.model_dir)
    try:
        model = load_model(
            folder, device, own.dtype, own.max_context_tokens, progress, communicator
        )
        geometry = geometry_of(own, model.attention, model.dtype, device)
        backend = choose_backend(own, model, geometry, threads)
    except (ModelFilesError, UnsupportedModel) as error:
        raise type(error)(f"draft model {folder.name}: {error}") from error
    return DraftModel(own, model, geometry, backend, communicator, vocab_size)
