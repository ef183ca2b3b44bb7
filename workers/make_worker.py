"""Makes the worker that a configuration asks for, and its rank's end of the group.

Imports torch only for who computes with it: a witness starts in a second without.
"""

from pathlib import Path

from blockyard.workers.config import Executor, WorkerConfig, WorkerKind
from blockyard.workers.description import describe_model
from blockyard.workers.group_end import GroupEnd, SilentEnd
from blockyard.workers.progress import ProgressReporter

__all__ = ["make_group_end", "make_worker"]


def make_group_end(config: WorkerConfig) -> GroupEnd:
    """What this rank meets the others with; a witness that is alone has nobody to meet."""
    if config.kind is WorkerKind.WITNESS and config.world_size == 1:
        return SilentEnd()
    from blockyard.workers.collectives import Communicator

    return Communicator(config.rank, config.world_size)


def make_worker(
    config: WorkerConfig,
    progress: ProgressReporter | None = None,
    group_end: GroupEnd | None = None,
) -> Executor:
    """The worker that `config.kind` asks for.

    Args:
        config: what it serves.
        progress: told of the load.
        group_end: of `make_group_end`, to be joined before the first step; None makes one for a
            rank that is alone. A witness has nothing to say to other ranks.
    """
    if config.kind is WorkerKind.WITNESS:
        from blockyard.workers.fake import WitnessWorker

        description = describe_model(config.model_dir, name=Path(config.model_dir).name)
        return WitnessWorker(config, description.vocab_size)
    from blockyard.workers.collectives import Communicator
    from blockyard.workers.worker import ModelWorker

    if group_end is not None and not isinstance(group_end, Communicator):
        raise TypeError(f"a model's ranks compute together; {group_end} says nothing to others")
    return ModelWorker(config, progress, group_end)
