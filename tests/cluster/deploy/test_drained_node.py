"""Draining a node's Ray lets the streams on it end whole, and then its replicas."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from blockyard.workers.fake import witness_generate

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NUM_TOKENS = 3000

# A head without work, and a node with everything, which is drained while a stream runs there.
DRIVE = """
import asyncio, json, os, subprocess, sys, time
import ray
from ray import serve
from blockyard.cluster.client import GenerationClient, Settings, build_request
from blockyard.cluster.deploy.leave_node import drain_command
from blockyard.cluster.service import build

port, num_tokens, told = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ray.init(num_cpus=0, log_to_driver=False, include_dashboard=False, object_store_memory=2**27)
address = ray.get_runtime_context().gcs_address
node = subprocess.Popen([
    drain_command(1)[0], "start", f"--address={address}", "--num-cpus=4", "--block",
    "--object-store-memory=134217728", "--disable-usage-stats",
    '--resources={"door": 1, "yard": 1}',
], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

def until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline and node.poll() is None, condition
        time.sleep(0.1)
    return found

try:
    until(lambda: ray.cluster_resources().get("door"))
    [other] = [n["NodeID"] for n in ray.nodes() if "door" in n["Resources"]]
    model = {"model": "witness", "device": "cpu", "num_blocks": 512, "group_resource": "yard"}
    args = {
        "models": [model], "grpc_port": port, "wire_host": "127.0.0.1", "drain_seconds": 60.0,
        "ingress_resource": "door",
    }
    serve.start(proxy_location="Disabled")
    serve.run(build(args), name="blockyard", route_prefix=None)

    async def stream():
        settings = Settings(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        request = build_request(token_ids=[1, 2, 3], settings=settings)
        tokens, drained = [], None
        async with GenerationClient(f"127.0.0.1:{port}", 200) as client:
            async for chunk in client.stream(request):
                tokens.extend(chunk.token_ids)
                if drained is None:
                    drain = [*drain_command(70), f"--address={address}", f"--node-id={other}"]
                    drained = await asyncio.create_subprocess_exec(*drain)
                    assert await drained.wait() == 0
                    seen_at = len(tokens)
        return tokens, seen_at

    tokens, seen_at = asyncio.run(stream())
    until(lambda: not [
        a for d in serve.status().applications["blockyard"].deployments.values()
        for a in (d.replica_states.get("RUNNING", 0), d.replica_states.get("STOPPING", 0),
                  d.replica_states.get("PENDING_MIGRATION", 0)) if a
    ])
    with open(told, "w") as file:
        json.dump({"tokens": tokens, "seen_at": seen_at}, file)
finally:
    serve.shutdown()
    node.terminate()
    node.wait(60)
    ray.shutdown()
"""


def test_a_stream_outlives_the_news(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = tmp_path / "told.json"
    # `ray start` notes its cluster for all who start Ray on this machine, in the folder that this
    # names; it must be short, for sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="by", dir="/tmp") as folder:
        ran = subprocess.run(
            [sys.executable, "-c", DRIVE, str(port), str(NUM_TOKENS), str(told)],
            capture_output=True,
            text=True,
            check=False,
            timeout=290,
            cwd=tmp_path,
            env={**os.environ, "RAY_TMPDIR": folder},
        )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(told.read_text())
    assert found["seen_at"] < NUM_TOKENS, "the stream was over before the node was drained"
    assert found["tokens"] == witness_generate([1, 2, 3], NUM_TOKENS, 259)
