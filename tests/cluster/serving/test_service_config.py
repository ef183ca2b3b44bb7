"""Two models and an ingress from a Serve config, with no driver of ours, placed by resources."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockyard.workers.fake import witness_generate

pytestmark = [pytest.mark.ray, pytest.mark.slow]

DEPLOY_AND_ASK = """
import asyncio, json, sys, time
import ray
from ray import serve
from ray.serve.schema import ServeDeploySchema
from blockyard.cluster.client import GenerationClient, Settings, build_request

config = json.loads(sys.argv[1])
offered = {"central": 1, "door": 1, "yard-a": 1, "yard-b": 1}
ray.init(
    num_cpus=8, resources=offered, log_to_driver=False, include_dashboard=False,
    object_store_memory=2**27,
)
serve.start(proxy_location="Disabled")
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

answers = {model: asyncio.run(ask(model)) for model in ("a", "b")}
left = {name: ray.available_resources().get(name, 0) for name in offered}
with open(sys.argv[2], "w") as told:
    json.dump({"answers": answers, "left": left}, told)
serve.shutdown()
ray.kill(ray.get_actor("blockyard-central", namespace="blockyard"))
ray.shutdown()
"""


def test_a_config_alone_brings_up_two_models(serve_port: int, tmp_path: Path) -> None:
    def model(name: str) -> dict[str, Any]:
        return {
            "model": "witness",
            "name": name,
            "device": "cpu",
            "num_blocks": 64,
            "deployment": f"groups-{name}",
            "group_resource": f"yard-{name}",
        }

    args = {
        "models": [model("a"), model("b")],
        "grpc_port": serve_port,
        "wire_host": "127.0.0.1",
        "central_resource": "central",
        "ingress_resource": "door",
        "drain_seconds": 5.0,
    }
    application = {
        "name": "blockyard",
        "import_path": "blockyard.cluster.service:build",
        "route_prefix": None,
        "args": args,
    }
    config = {"proxy_location": "Disabled", "applications": [application]}
    told = tmp_path / "told.json"
    ran = subprocess.run(
        [sys.executable, "-c", DEPLOY_AND_ASK, json.dumps(config), str(told)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(told.read_text())
    expected = witness_generate([1, 2, 3], 20, 259)
    assert found["answers"] == {"a": expected, "b": expected}
    assert found["left"] == {"central": 0, "door": 0, "yard-a": 0, "yard-b": 0}
