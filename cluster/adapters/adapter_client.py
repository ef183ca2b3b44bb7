"""Has a running server load and unload adapters, from outside."""

from blockyard.cluster.client import GenerationClient
from blockyard.protos import cluster_pb2 as pb

__all__ = ["load_adapter", "unload_adapter"]

_CLUSTER = "/blockyard.v1.Cluster"


async def load_adapter(
    client: GenerationClient, name: str, path: str, model: str = ""
) -> pb.Adapter:
    """Have a model be served with an adapter too; see `cluster.proto`. Raises `ServerError`."""
    request = pb.LoadAdapterRequest(model=model, name=name, path=path)
    told: pb.Adapter = await client.call(f"{_CLUSTER}/LoadAdapter", request, pb.Adapter)
    return told


async def unload_adapter(client: GenerationClient, name: str, model: str = "") -> pb.Adapter:
    """Have no more requests taken for an adapter. Raises `ServerError`."""
    request = pb.UnloadAdapterRequest(model=model, name=name)
    told: pb.Adapter = await client.call(f"{_CLUSTER}/UnloadAdapter", request, pb.Adapter)
    return told
