"""What Ray Serve is told: by Serve's own schema, and as the product itself reads it."""

import importlib
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockyard.cluster.logs import LOG_FORMATS, LOG_LEVELS, LogConfig
from blockyard.cluster.request.speech_format import REASONING_FORMATS, TOOL_FORMATS
from blockyard.cluster.tls import TlsFiles
from blockyard.scheduler.config import PreemptionPolicy, Speculation
from blockyard.workers.config import CUDA_GRAPHS, DEVICES, DTYPES, KV_DTYPES, WEIGHTS

ROOT = Path(__file__).resolve().parents[2]
WITNESS = {"name": "witness", "groups": 2, "device": "cpu"}


def imported(module: str) -> Any:
    with warnings.catch_warnings():
        # Ray Serve declares its schemas in a way that pydantic has deprecated.
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKYARD_CACHE", str(tmp_path))


@pytest.mark.parametrize("everything", [True, False])
def test_serve_takes_it(render: Callable[..., Any], full: dict[str, Any], everything: bool) -> None:
    config = render(full if everything else {}).serve_config
    schema = imported("ray.serve.schema").ServeDeploySchema
    parsed = schema.model_validate(config)
    # Serve lets pass what it does not know, so that a misspelt field would do nothing.
    assert set(config) <= set(schema.model_fields)
    [application], [told] = parsed.applications, config["applications"]
    assert set(told) <= set(type(application).model_fields)
    assert application.import_path == "blockyard.cluster.service:build"


def test_the_product_takes_every_value(render: Callable[..., Any]) -> None:
    own = {
        "servedName": "clients-say",
        "dtype": "float32",
        "kvDtype": "bfloat16",
        "weights": "int8",
        "cudaGraphs": "off",
        "blockSize": 32,
        "blocks": 100,
        "hostBlocks": 7,
        "kvMemory": "1.5Gi",
        "threads": 3,
        "maxRunning": 11,
        "maxStepTokens": 64,
        "maxWaiting": 12,
        "preemption": "recompute",
        "pipelineDepth": 2,
        "toolCallParser": "hermes",
        "reasoningParser": "think",
        "stallSeconds": 33,
        "tensorParallel": 2,
    }
    follows = {"min": 0, "max": 5, "queueSeconds": 1.5, "quietSeconds": 60, "idleSeconds": 600}
    other = {"name": "other", "id": "witness", "groups": follows}
    other |= {"speculate": "draft", "draftModel": "witness", "draftWeights": "int4"}
    values = {
        "models": [WITNESS | own, WITNESS | other],
        "modelDefaults": {"blockSize": 8},
        "server": {"grpcPort": 6000, "httpPort": 6002, "metricsPort": 6001, "drainSeconds": 44}
        | {"resumeSeconds": 90},
        "admin": {"enabled": True, "weightsRoot": "/models/other"},
        "apiKeys": {"secret": "keys", "testKey": "test"},
        "modelStorage": {"type": "existingClaim", "existingClaim": "mine"},
        "ingress": {"replicas": 3},
        "tls": {
            "secret": "certificate",
            "clients": {"caSecret": "people", "testSecret": "tester"},
        },
        "logs": {"level": "WARNING", "prompts": True},
        "tracing": {"endpoint": "http://collector:4318/v1/traces"},
    }
    args = render(values).serve_config["applications"][0]["args"]
    first, second = imported("blockyard.cluster.service").served_models(args)
    config = first.config
    assert (config.model.name, first.deployment) == ("clients-say", "groups-witness")
    assert (config.dtype, config.block_size, config.num_blocks) == ("float32", 32, 100)
    assert (config.num_host_blocks, config.kv_memory_bytes) == (7, 3 * 2**29)
    assert (config.threads, config.max_running, config.max_step_tokens) == (3, 11, 64)
    assert (config.max_waiting, config.preemption) == (12, PreemptionPolicy.RECOMPUTE)
    assert (config.stall_seconds, config.num_groups, config.num_ranks) == (33, 2, 2)
    assert (config.grpc_host, config.grpc_port) == ("0.0.0.0", 6000)
    assert (config.metrics_host, config.metrics_port) == ("0.0.0.0", 6001)
    assert (config.weights, config.http_host, config.http_port) == ("int8", "0.0.0.0", 6002)
    assert (config.drain_seconds, config.num_ingresses) == (44, 3)
    files = ("/etc/blockyard-tls/tls.crt", "/etc/blockyard-tls/tls.key")
    assert config.tls == TlsFiles(*files, "/etc/blockyard-tls-clients/ca.crt")
    assert config.logs == LogConfig("json", "WARNING", None, prompts=True)
    assert config.trace_endpoint == second.config.trace_endpoint
    assert config.trace_endpoint == "http://collector:4318/v1/traces"
    assert (config.kv_dtype, config.pipeline_depth) == ("bfloat16", 2)
    assert (config.cuda_graphs, second.config.cuda_graphs) == ("off", "auto")
    assert (config.tool_call_parser, config.reasoning_parser) == ("hermes", "think")
    assert (config.resume_seconds, second.config.speculate) == (90, Speculation.DRAFT)
    draft = second.config.draft
    assert draft is not None and (draft.name, second.config.draft_weights) == ("witness", "int4")
    assert (config.allow_admin, config.weights_root) == (True, "/models/other")
    assert config.scaling is None
    scaling = second.config.scaling
    assert scaling is not None and (scaling.min_groups, scaling.max_groups) == (0, 5)
    assert (scaling.queue_seconds, scaling.quiet_seconds, scaling.idle_seconds) == (1.5, 60, 600)
    assert (second.config.block_size, second.config.pipeline_depth) == (8, None)
    assert second.config.num_blocks is None


def test_what_is_placed_by_resources_finds_them(
    render: Callable[..., Any], full: dict[str, Any]
) -> None:
    rendered = render(full)
    groups = rendered.ray_service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    offered: dict[str, int] = {}
    for group in groups:
        params = group["rayStartParams"]["resources"]
        # The operator passes it on to a shell.
        assert params.startswith("'{") and params.endswith("}'")
        for name, count in yaml.safe_load(params[1:-1]).items():
            offered[name] = count * group["replicas"]
    args = rendered.serve_config["applications"][0]["args"]
    needed = {args["central_resource"]: 1, args["ingress_resource"]: args["num_ingresses"]}
    needed |= {model["group_resource"]: model["num_groups"] for model in args["models"]}
    assert offered == needed


def test_ingress_options_are_the_products_and_name_where_the_application_is_built(
    render: Callable[..., Any],
) -> None:
    rendered = render({"models": [WITNESS]})
    [application] = rendered.serve_config["applications"]
    [overridden] = application["deployments"]
    app = imported("blockyard.cluster.service").build(application["args"])._bound_deployment
    assert overridden["name"] == app.name
    selector = overridden["ray_actor_options"].pop("label_selector")
    assert overridden["ray_actor_options"] == app.ray_actor_options
    groups = rendered.ray_service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    labelled = [group["groupName"] for group in groups if group.get("labels") == selector]
    assert labelled == ["ingress"]


@pytest.mark.parametrize("haproxy", [True, False])
def test_the_proxy_offers_what_the_product_offers(
    render: Callable[..., Any], haproxy: bool
) -> None:
    rendered = render({"serveProxy": {"enabled": True, "port": 9001, "haproxy": haproxy}})
    config = rendered.serve_config
    assert config["proxy_location"] == "EveryNode"
    assert config["grpc_options"]["port"] == 9001
    servicers = imported("blockyard.cluster.runtime").SERVICERS
    assert config["grpc_options"]["grpc_servicer_functions"] == list(servicers)
    # The proxy knows of applications that have a route, and of no others.
    assert config["applications"][0]["route_prefix"] == "/"
    on = {"name": "RAY_SERVE_ENABLE_HA_PROXY", "value": "1"}
    for name in ("head", "central", "ingress", "engine-smollm2-135m"):
        assert (on in rendered.pods[name]["containers"][0]["env"]) is haproxy


def test_versions_are_the_projects(chart: Path, render: Callable[..., Any]) -> None:
    pins = (ROOT / "constraints.txt").read_text()
    cluster = render().ray_service["spec"]["rayClusterConfig"]
    assert f"\nray=={cluster['rayVersion']}\n" in pins
    told = yaml.safe_load((chart / "Chart.yaml").read_text())
    [version] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert told["version"] == told["appVersion"] == version


def test_choices_are_the_products(chart: Path) -> None:
    schema = json.loads((chart / "values.schema.json").read_text())
    for told in (schema["$defs"]["model"], schema["properties"]["modelDefaults"]):
        offered = {name: value.get("enum") for name, value in told["properties"].items()}
        assert offered["dtype"] == list(DTYPES)
        assert offered["kvDtype"] == list(KV_DTYPES)
        assert offered["weights"] == list(WEIGHTS)
        assert offered["cudaGraphs"] == list(CUDA_GRAPHS)
        assert offered["speculate"] == [where.value for where in Speculation]
        assert offered.get("draftWeights", list(WEIGHTS)) == list(WEIGHTS)
        assert offered["toolCallParser"] == list(TOOL_FORMATS)
        assert offered["reasoningParser"] == list(REASONING_FORMATS)
        assert offered["preemption"] == [policy.value for policy in PreemptionPolicy]
    logs = schema["properties"]["logs"]["properties"]
    assert (logs["format"]["enum"], logs["level"]["enum"]) == ([*LOG_FORMATS], [*LOG_LEVELS])
    # A chart knows before there are nodes; the server would look.
    assert {*schema["$defs"]["model"]["properties"]["device"]["enum"], "auto"} == set(DEVICES)


NOT_OF_THE_CHART = {
    "allow_chaos": "for tests",
    "wire_host": "each pod's own address",
    "serve_grpc_port": "Ray Serve is told itself (serveProxy)",
}
"""What the product can be told and the chart does not offer, and why."""


def test_whatever_the_product_can_be_told_the_chart_can_say(chart: Path) -> None:
    service = imported("blockyard.cluster.service")
    template = (chart / "templates" / "_serve.tpl").read_text()
    told = service.OWN_OF_A_MODEL | service.SHARED
    assert {name for name in told if f'"{name}"' not in template} == set(NOT_OF_THE_CHART)
