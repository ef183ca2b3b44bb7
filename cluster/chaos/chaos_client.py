"""Has things go wrong in a running cluster, from outside. Units: seconds."""

import grpc

from blockyard.cluster.client import GenerationClient
from blockyard.cluster.client_error import ServerError
from blockyard.protos import chaos_pb2

__all__ = ["ChaosRefused", "disturb"]

_DISTURB = "/blockyard.v1.Chaos/Disturb"


class ChaosRefused(Exception):
    """The cluster does not allow faults."""


async def disturb(
    client: GenerationClient, fault: str, group_id: str = "", rank: int = 0, seconds: float = 0.0
) -> chaos_pb2.DisturbResponse:
    """Make something go wrong; see `chaos.proto` for what each value means.

    Raises:
        ChaosRefused: the cluster was not started with faults allowed.
        ServerError: any other failure.
    """
    request = chaos_pb2.DisturbRequest(fault=fault, group_id=group_id, rank=rank, seconds=seconds)
    try:
        answer: chaos_pb2.DisturbResponse = await client.call(
            _DISTURB, request, chaos_pb2.DisturbResponse
        )
    except ServerError as error:
        if error.code == grpc.StatusCode.UNIMPLEMENTED.name:
            raise ChaosRefused(
                "this cluster was not started with faults allowed; for a test cluster that may "
                "come to harm use `blockyard serve --allow-chaos`"
            ) from None
        raise
    return answer
