"""A whole node is lost: what ran there goes on elsewhere; once none is left, clients are told."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from blockyard.workers.fake import witness_generate

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

NUM_STREAMS = 8
NUM_TOKENS = 3000

# A head with the door and the central scheduler, and two nodes with a group each.
DRIVE = """
import asyncio, json, sys, time
import grpc
import ray
from grpc_health.v1 import health_pb2
from ray import serve
from ray.cluster_utils import Cluster
from blockyard.cluster.client import GenerationClient, ServerError, Settings, build_request
from blockyard.cluster.service import build

port, num_streams, num_tokens, told = *map(int, sys.argv[1:4]), sys.argv[4]
memory = {"object_store_memory": 2**27}
cluster = Cluster(initialize_head=True, head_node_args={
    "num_cpus": 1, "resources": {"door": 1, "centre": 1}, **memory})
nodes = [cluster.add_node(num_cpus=2, resources={"yard": 1}, **memory) for _ in range(2)]
ray.init(address=cluster.address, log_to_driver=False)
cluster.wait_for_nodes()

async def until(condition, seconds=150):
    async with asyncio.timeout(seconds):
        while not (found := await condition()):
            await asyncio.sleep(0.05)
    return found

def request(number, max_tokens):
    settings = Settings(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return build_request(token_ids=[number, 2, 3], settings=settings)

async def healthy(address):
    async with grpc.aio.insecure_channel(address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        answer = await check(health_pb2.HealthCheckRequest())
    return answer.status == health_pb2.HealthCheckResponse.SERVING

async def run():
    address = f"127.0.0.1:{port}"
    found = {}
    async with GenerationClient(address, 300) as client:
        async def groups():
            return {g.group_id: g.requests.running for g in (await client.ledger()).groups}

        async def both():
            return len(await groups()) == 2

        await until(both)
        assert await healthy(address)
        tokens = [[] for _ in range(num_streams + 1)]

        async def follow(number, max_tokens):
            async for chunk in client.stream(request(number, max_tokens)):
                tokens[number].extend(chunk.token_ids)

        streams = [asyncio.create_task(follow(n, num_tokens)) for n in range(num_streams)]

        async def begun():
            return all(tokens[:num_streams]) and all((await groups()).values())

        await until(begun)
        found["at_loss"] = [len(one) for one in tokens[:num_streams]]
        before = set(await groups())
        cluster.remove_node(nodes[0], allow_graceful=False)
        await asyncio.wait_for(asyncio.gather(*streams), 150)
        found["tokens"] = tokens[:num_streams]
        found["survivors"] = len(before & set(await groups()))
        found["healthy_with_one"] = await healthy(address)

        last = asyncio.create_task(follow(num_streams, num_tokens))

        async def last_begun():
            return bool(tokens[num_streams])

        await until(last_begun)
        cluster.remove_node(nodes[1], allow_graceful=False)

        async def unhealthy():
            return not await healthy(address)

        await until(unhealthy)
        try:
            await last
            found["last"] = ""
        except ServerError as error:
            found["last"] = error.code
        try:
            await client.generate(request(1, 1))
            found["next"] = ""
        except ServerError as error:
            found["next"] = error.code
    return found

try:
    model = {"model": "witness", "device": "cpu", "num_blocks": 2048, "num_groups": 2,
             "group_resource": "yard"}
    args = {"models": [model], "grpc_port": port, "wire_host": "127.0.0.1", "drain_seconds": 1.0,
            "resume_seconds": 3.0, "ingress_resource": "door", "central_resource": "centre"}
    serve.start(proxy_location="Disabled")
    serve.run(build(args), name="blockyard", route_prefix=None)
    found = asyncio.run(run())
    with open(told, "w") as file:
        json.dump(found, file)
finally:
    ray.shutdown()
    cluster.shutdown()
"""


def test_what_ran_on_a_lost_node_goes_on_elsewhere_and_the_last_loss_is_told(
    tmp_path: Path,
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = tmp_path / "told.json"
    # Sockets lie in the folder that this names, so it must be short.
    with tempfile.TemporaryDirectory(prefix="by", dir="/tmp") as folder:
        ran = subprocess.run(
            [sys.executable, "-c", DRIVE, *map(str, (port, NUM_STREAMS, NUM_TOKENS, told))],
            capture_output=True,
            text=True,
            check=False,
            timeout=850,
            cwd=tmp_path,
            env={**os.environ, "RAY_TMPDIR": folder},
        )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(told.read_text())
    assert min(found["at_loss"]) > 0
    assert min(found["at_loss"]) < NUM_TOKENS, "all streams were over before the node was lost"
    assert found["tokens"] == [
        witness_generate([number, 2, 3], NUM_TOKENS, 259) for number in range(NUM_STREAMS)
    ]
    assert (found["survivors"], found["healthy_with_one"]) == (1, True)
    assert (found["last"], found["next"]) == ("UNAVAILABLE", "UNAVAILABLE")
