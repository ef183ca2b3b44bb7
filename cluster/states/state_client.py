"""Has the models of a running server sleep, wake and go on with other weights, from outside."""

from blockyard.cluster.client import GenerationClient
from blockyard.protos import cluster_pb2 as pb

__all__ = ["sleep", "update_weights", "wake_up"]

_CLUSTER = "/blockyard.v1.Cluster"


async def sleep(client: GenerationClient, model: str = "") -> pb.ModelState:
    """Have a model give back its memory; see `cluster.proto`. Raises `ServerError`."""
    request = pb.SleepRequest(model=model)
    state: pb.ModelState = await client.call(f"{_CLUSTER}/Sleep", request, pb.ModelState)
    return state


async def wake_up(client: GenerationClient, model: str = "") -> pb.ModelState:
    """Have a model serve again. Raises `ServerError`."""
    request = pb.WakeUpRequest(model=model)
    state: pb.ModelState = await client.call(f"{_CLUSTER}/WakeUp", request, pb.ModelState)
    return state


async def update_weights(
    client: GenerationClient, directory: str, model: str = ""
) -> pb.ModelState:
    """Have a model go on with other weights. Raises `ServerError`."""
    request = pb.UpdateWeightsRequest(model=model, directory=directory)
    state: pb.ModelState = await client.call(f"{_CLUSTER}/UpdateWeights", request, pb.ModelState)
    return state
