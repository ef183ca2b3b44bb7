"""Files for `ray up` and `serve deploy`: Ray's own checks take them, and so does the product."""

import importlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from blockyard.cluster.cli import app

FOLDER = Path(__file__).resolve().parents[3] / "cluster" / "deploy"
NAMES = sorted(path.name for path in FOLDER.glob("*.yaml"))


def imported(module: str) -> Any:
    with warnings.catch_warnings():
        # Ray declares its schemas in a way that pydantic has deprecated.
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def checked(config: dict[str, Any]) -> dict[str, Any]:
    """As Ray itself would go on with it; it raises what `ray up` would."""
    util = imported("ray.autoscaler._private.util")
    prepared: dict[str, Any] = util.prepare_config(config)
    util.validate_config(prepared)
    return prepared


def read(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return config


def test_there_is_one_for_own_machines_and_for_two_clouds() -> None:
    assert NAMES == ["aws.yaml", "gcp.yaml", "local.yaml"]


@pytest.mark.parametrize("name", NAMES)
def test_ray_takes_it(name: str) -> None:
    prepared = checked(read(name))
    assert prepared["cluster_name"] == "blockyard"
    for node in prepared["available_node_types"].values():
        assert node["max_workers"] >= node["min_workers"]
    # Whoever reaches a cluster without a token runs what they like there.
    assert prepared["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    for part in ("head", "worker"):
        started = prepared[f"{part}_start_ray_commands"][-1]
        assert "RAY_SERVE_ENABLE_HA_PROXY=1" in started and "RAY_AUTH_MODE=token" in started


@pytest.mark.parametrize(
    "change",
    [{"colour": "blue"}, {"max_workers": "many"}, {"provider": {"type": "moon"}}],
    ids=["unknown", "type", "provider"],
)
def test_that_check_finds_mistakes(change: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"colour|many|moon"):
        checked(read("aws.yaml") | change)


def test_no_command_is_meant_for_another_folder() -> None:
    for name in NAMES:
        for command in re.findall(r"(\S+/bin/\S+)", (FOLDER / name).read_text()):
            assert command.startswith("~/blockyard-env/bin/"), command


@pytest.fixture(autouse=True)
def ray_is_loaded() -> None:
    imported("blockyard.cluster.deploy.serve_config")


def rendered(*arguments: str) -> Any:
    outcome = CliRunner().invoke(app, ["config", "render", *arguments])
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.output)


def test_serve_and_the_product_take_what_is_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKYARD_CACHE", str(tmp_path))
    told = ["--model", "witness", "--device", "cpu", "--groups", "1:3", "--ranks", "2"]
    told += ["--http-port", "8000", "--metrics-port", "9464", "--set", "num_blocks=99"]
    config = rendered(*told, "--set", "group_resource=engine", "--set", "drain_seconds=12.5")
    schema = imported("ray.serve.schema").ServeDeploySchema
    [application] = schema.model_validate(config).applications
    assert set(config) <= set(schema.model_fields)
    assert set(config["applications"][0]) <= set(type(application).model_fields)
    [served] = imported("blockyard.cluster.service").served_models(application.args)
    made = served.config
    assert (made.min_groups, made.max_groups, made.num_ranks) == (1, 3, 2)
    assert (made.num_blocks, made.group_resource, made.drain_seconds) == (99, "engine", 12.5)
    assert (made.grpc_host, made.http_port, made.metrics_port) == ("0.0.0.0", 8000, 9464)


def test_proxies_are_on_where_they_have_a_port() -> None:
    off = rendered("--model", "witness", "--device", "cpu")
    assert off["proxy_location"] == "Disabled" and "grpc_options" not in off
    on = rendered("--model", "witness", "--device", "cpu", "--serve-grpc-port", "9000")
    assert imported("ray.serve.schema").ServeDeploySchema.model_validate(on)
    assert (on["proxy_location"], on["applications"][0]["route_prefix"]) == ("EveryNode", "/")
    # A proxy on one node reaches an ingress on another.
    assert on["http_options"] == {"host": "0.0.0.0", "port": 9001}
    servicers = list(imported("blockyard.cluster.runtime").SERVICERS)
    assert on["grpc_options"] == {"port": 9000, "grpc_servicer_functions": servicers}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (["--device", "auto"], "cpu or cuda"),
        (["--groups", "some"], "give a number, or MIN:MAX"),
        (["--set", "colour=1"], "unknown: colour; known are .*block_size"),
        (["--set", "colour"], "give NAME=VALUE"),
    ],
)
def test_what_is_wrong_is_named(told: list[str], words: str) -> None:
    outcome = CliRunner().invoke(app, ["config", "render", *told])
    assert outcome.exit_code == 2
    assert re.search(words, outcome.output), outcome.output
