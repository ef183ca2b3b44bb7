"""`ray up` with `local.yaml` on two machines: a request is served across both, and nothing is left.

The machines are namespaces of this one; see `machines.sh`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockyard.workers.fake import witness_generate

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

LOCAL = Path(__file__).resolve().parents[3] / "cluster" / "deploy" / "local.yaml"
NUM_TOKENS = 200
PLACES = ("group_resource=engine", "ingress_resource=door", "central_resource=central")
GET = r"printf 'GET /ready HTTP/1.0\r\n\r\n' >&3; grep -q ' 200 ' <&3"
WAIT = f"until (exec 3<> /dev/tcp/192.0.2.10/9464; {GET}) 2> /dev/null; do sleep 0.5; done"
"""Until the ingress is ready; to ask Serve would load the machine."""


@pytest.fixture
def cluster_file() -> str:
    """`local.yaml` as an operator edits it: who logs in there, and what each machine is for."""
    config: dict[str, Any] = yaml.safe_load(LOCAL.read_text())
    config["auth"]["ssh_user"] = "root"
    # The environment is there already, and links to a tree that a copy would stand in the way of.
    make, name, install, fetch = config["setup_commands"]
    assert "pip install" in install and "model fetch" in fetch
    config["setup_commands"] = [make, name, fetch.replace("smollm2-135m", "witness")]
    del config["file_mounts"]["~/blockyard"]
    for part, offers in (("head", {"door": 1, "central": 1}), ("worker", {"engine": 1})):
        commands = config[f"{part}_start_ray_commands"]
        told = f"ray start --resources='{json.dumps(offers)}'"
        commands[-1] = commands[-1].replace("ray start", told)
    return str(yaml.safe_dump(config))


def test_a_request_is_served_across_two_machines(
    machines: Any, cluster_file: str, until: Callable[..., None]
) -> None:
    operator, head, node = machines.operator, machines.head, machines.node
    operator.path("tmp/home/local.yaml").write_text(cluster_file)
    told = [f"--set={place}" for place in PLACES]
    rendered = operator.run(
        *("blockyard", "config", "render", "--model=witness", "--device=cpu"),
        *("--metrics-port=9464", *told),
    )
    operator.path("tmp/home/serve.json").write_text(rendered)
    operator.run("ray", "get-auth-token", "--generate")

    def on_head(command: str) -> None:
        operator.run("ray", "exec", "--no-config-cache", "local.yaml", command)

    operator.run("ray", "up", "-y", "--no-config-cache", "local.yaml")
    until(lambda: any("raylet" in title for title in node.titles()))
    on_head("RAY_AUTH_MODE=token ~/blockyard-env/bin/serve deploy ~/serve.json")
    operator.run("timeout", "300", "bash", "-c", WAIT, seconds=310)

    assert head.runs("ray::ServeReplica:blockyard:ingress")
    assert node.runs("ray::ServeReplica:blockyard:groups")
    assert not head.runs("ray::ServeReplica:blockyard:groups")
    asked = ["--address=192.0.2.10:50051", "--raw", f"--max-tokens={NUM_TOKENS}", "--ignore-eos"]
    answer = json.loads(operator.run("blockyard", "generate", *asked, "--json", "abc"))
    # The witness has a token for each byte, those of printable characters first.
    prompt = [ord(letter) - ord("!") for letter in "abc"]
    assert answer["token_ids"] == witness_generate(prompt, NUM_TOKENS, 259)

    operator.run("ray", "down", "-y", "local.yaml")
    until(lambda: not head.titles() and not node.titles())
