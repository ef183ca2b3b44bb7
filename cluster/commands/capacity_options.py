"""Options that the commands about capacity share, so that each means the same everywhere."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from blockyard.cluster.capacity.model_shape import FoundShape

__all__ = [
    "Allowance",
    "AsJson",
    "BlockSize",
    "DraftModel",
    "KvDtype",
    "Model",
    "Shape",
    "Tp",
    "WeightDtype",
    "find_model",
]

Model = Annotated[
    str | None,
    typer.Option(help="Directory, hub repository or known name.", show_default=False),
]
Shape = Annotated[
    str | None,
    typer.Option(help="In place of a model: layers,kv_heads,head_dim,params.", show_default=False),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        help="A model that guesses beside it: directory, hub repository or known name.",
        show_default=False,
    ),
]
Tp = Annotated[int, typer.Option(help="GPUs that share one copy of the model.", min=1)]
WeightDtype = Annotated[str, typer.Option(help="Dtype of the weights.")]
KvDtype = Annotated[str, typer.Option(help="Dtype of keys and values.")]
BlockSize = Annotated[int, typer.Option(help="Token slots in a block.", min=1)]
Allowance = Annotated[
    str, typer.Option(help="Of each GPU for CUDA context, activations and graphs: a guess.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def find_model(model: str | None, shape: str | None) -> "FoundShape | None":
    """The model that `--model` or `--shape` names; None when neither is given.

    Raises:
        ValueError: both are given, or nobody knows it.
    """
    from blockyard.cluster.capacity.model_shape import FoundShape, find_shape
    from blockyard.scheduler.capacity.kv_math import parse_shape

    if model is not None and shape is not None:
        raise ValueError("give --model or --shape, not both")
    if shape is not None:
        return FoundShape(parse_shape(shape), None)
    return None if model is None else find_shape(model)
