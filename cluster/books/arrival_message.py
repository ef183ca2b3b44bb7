"""Requests of every group as the message that recorders get; what names anybody is hashed.

Whoever has the message but not the recorder's salt can neither tell a prompt nor test a guess at
one. Units: as in the proto.
"""

from collections.abc import Mapping
from hashlib import blake2b

from blockyard.cluster.books.arrival_log import ArrivalBatch, ArrivalRecord
from blockyard.cluster.books.step_log import StepRecord
from blockyard.protos import cluster_pb2

__all__ = ["LEAST_SALT_BYTES", "arrivals_message"]

LEAST_SALT_BYTES = 16

_ID_BITS = 52
"""So that ids stay whole numbers in every JSON reader; among ten million two agree by chance once
in a hundred recordings."""


def arrivals_message(
    batches: Mapping[str, ArrivalBatch], after: Mapping[str, int], salt: bytes
) -> cluster_pb2.ArrivalsResponse:
    """What each group told, as one message; a group that did not answer keeps its old number."""
    response = cluster_pb2.ArrivalsResponse(missed=sum(batch.missed for batch in batches.values()))
    for group_id, number in after.items():
        response.next[group_id] = number
    for group_id, batch in batches.items():
        response.next[group_id] = batch.next_number
        for record in batch.records:
            response.arrivals.append(_arrival(record, batch.block_size, salt))
        response.steps.extend(map(_step, batch.steps))
    return response


def _arrival(record: ArrivalRecord, block_size: int, salt: bytes) -> cluster_pb2.Arrival:
    return cluster_pb2.Arrival(
        arrived_at=record.arrived_at,
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        tenant_hash=_digest(record.tenant.encode(), salt).hex() if record.tenant else "",
        prefix_ids=[
            int.from_bytes(_digest(key, salt)) >> (64 - _ID_BITS) for key in record.block_keys
        ],
        piece_tokens=block_size,
    )


def _step(record: StepRecord) -> cluster_pb2.MeasuredStep:
    return cluster_pb2.MeasuredStep(
        rows=record.rows,
        tokens=record.tokens,
        context_tokens=record.context_tokens,
        attended_pairs=record.attended_pairs,
        seconds=record.seconds,
    )


def _digest(value: bytes, salt: bytes) -> bytes:
    return blake2b(value, digest_size=8, key=salt[:64]).digest()
