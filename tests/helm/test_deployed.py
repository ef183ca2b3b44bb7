"""What the chart tells Ray Serve brings up two models that answer, placed as it says.

One Ray node on this machine offers what the chart's pods offer together; no Kubernetes is involved.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockyard.workers.fake import witness_generate

pytestmark = [pytest.mark.ray, pytest.mark.slow]

DEPLOY_AND_ASK = """
import asyncio, json, sys, time
import ray
from ray import serve
from ray.serve.schema import ServeDeploySchema
from blockyard.cluster.client import GenerationClient, Settings, build_request

config, offered, labels, told = *map(json.loads, sys.argv[1:4]), sys.argv[4]
ray.init(
    num_cpus=8, resources=offered, labels=labels, log_to_driver=False, include_dashboard=False,
    object_store_memory=2**27,
)
serve.start(proxy_location=config["proxy_location"])
serve.context._get_global_client().deploy_apps(ServeDeploySchema(**config))
deadline = time.monotonic() + 200
while (state := serve.status().applications["blockyard"]).status != "RUNNING":
    assert state.status != "DEPLOY_FAILED" and time.monotonic() < deadline, state
    time.sleep(0.2)

async def ask(model):
    port = config["applications"][0]["args"]["grpc_port"]
    async with GenerationClient(f"127.0.0.1:{port}", 100) as client:
        settings = Settings(max_tokens=20, temperature=0.0, ignore_eos=True)
        request = build_request(token_ids=[1, 2, 3], settings=settings)
        request.model = model
        return list((await client.generate(request)).token_ids)

answers = {model: asyncio.run(ask(model)) for model in ("first", "second")}
left = {name: ray.available_resources().get(name, 0) for name in offered}
with open(told, "w") as file:
    json.dump({"answers": answers, "left": left}, file)
serve.shutdown()
ray.kill(ray.get_actor("blockyard-central", namespace="blockyard"))
ray.shutdown()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_rendered_config_serves(render: Callable[..., Any], tmp_path: Path) -> None:
    model = {"id": "witness", "groups": 1, "device": "cpu", "blocks": 64}
    names = ("first", "second")
    values = {
        "models": [model | {"name": name} for name in names],
        "server": {
            "grpcPort": free_port(),
            "httpPort": free_port(),
            "metricsPort": free_port(),
            "drainSeconds": 5,
        },
    }
    rendered = render(values)
    config = rendered.serve_config
    # In a pod it is for others to reach; here it stays on this machine.
    local = {
        "grpc_host": "127.0.0.1",
        "http_host": "127.0.0.1",
        "metrics_host": "127.0.0.1",
        "wire_host": "127.0.0.1",
    }
    config["applications"][0]["args"] |= local
    offered: dict[str, int] = {}
    labels: dict[str, str] = {}
    for group in rendered.ray_service["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        offered |= yaml.safe_load(group["rayStartParams"]["resources"][1:-1])
        labels |= group.get("labels", {})
    told = tmp_path / "told.json"
    arguments = [*map(json.dumps, (config, offered, labels)), str(told)]
    ran = subprocess.run(
        [sys.executable, "-c", DEPLOY_AND_ASK, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(told.read_text())
    assert found["answers"] == dict.fromkeys(names, witness_generate([1, 2, 3], 20, 259))
    assert found["left"] == dict.fromkeys(offered, 0), "something was placed elsewhere"
