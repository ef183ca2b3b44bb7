"""The chart through the real Helm engine, and the schemas that what it renders is held against."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "blockyard"
RAY_SERVICE_SCHEMA = Path(__file__).with_name("rayservice-v1.schema.json")
PROMETHEUS = "monitoring.coreos.com/v1"
"""Its kinds have no schema here: it is not part of Kubernetes."""
KUBERNETES_VERSIONS = ("1.27", "1.37")
"""The oldest that the chart takes, and the newest whose schemas are at hand."""

FULL: dict[str, Any] = {
    "commonLabels": {"team": "yard"},
    "commonAnnotations": {"note": "all"},
    "image": {"repository": "example.org/blockyard", "digest": "sha256:" + "a" * 64},
    "models": [
        {
            "name": "large",
            "id": "org/large",
            "revision": "v1.0",
            "servedName": "Large",
            "groups": 3,
            "device": "cuda",
            "tensorParallel": 4,
            "dtype": "bfloat16",
            "kvMemory": "60Gi",
            "hostBlocks": 4096,
            "gpu": {"product": "NVIDIA-H200"},
            "engine": {
                "resources": {"limits": {"memory": "128Gi"}},
                "shmSize": "16Gi",
                "runtimeClassName": "nvidia",
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            },
        },
        {"name": "small", "id": "smollm2-135m", "groups": 1, "device": "cpu", "threads": 4},
    ],
    "huggingFace": {"tokenSecret": "hub"},
    "modelStorage": {"type": "claim", "size": "500Gi", "storageClassName": "shared"},
    "ray": {
        "gcsFaultTolerance": {
            "enabled": True,
            "redisAddress": "redis:6379",
            "redisPasswordSecret": "redis",
        }
    },
    "serveProxy": {"enabled": True},
    "ingress": {"replicas": 2},
    "service": {"type": "LoadBalancer", "port": 443},
    "grpcIngress": {"enabled": True, "host": "llm.example.org", "tlsSecret": "certificate"},
    "httpIngress": {"enabled": True, "host": "http.example.org", "yardPage": True},
    "networkPolicy": {"egress": {"enabled": True}},
    "podDisruptionBudget": {"head": 1, "central": 1, "ingress": 1, "engine": 2},
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "podMonitor": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}}
    ],
}
"""Everything that can be switched on, at once."""


@dataclass(frozen=True)
class Rendered:
    """What one release consists of."""

    objects: list[dict[str, Any]]
    notes: str

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [found for found in self.objects if found["kind"] == kind]

    @property
    def ray_service(self) -> dict[str, Any]:
        [found] = self.of_kind("RayService")
        return found

    @property
    def serve_config(self) -> dict[str, Any]:
        parsed: dict[str, Any] = yaml.safe_load(self.ray_service["spec"]["serveConfigV2"])
        return parsed

    @property
    def pods(self) -> dict[str, dict[str, Any]]:
        """The spec of every kind of pod, by the name of its group; `test` is the test's."""
        cluster = self.ray_service["spec"]["rayClusterConfig"]
        groups = {"head": cluster["headGroupSpec"]}
        groups |= {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
        [test] = self.of_kind("Pod")
        return {name: group["template"]["spec"] for name, group in groups.items()} | {
            "test": test["spec"]
        }


def render_chart(values: dict[str, Any] | None = None, name: str = "demo") -> Rendered:
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values or {}, name=name, namespace="prod")
    notes = [text for path, text in files.items() if path.endswith("NOTES.txt")]
    objects = [
        found
        for path, text in files.items()
        if not path.endswith("NOTES.txt")
        for found in yaml.safe_load_all(text)
        if found is not None
    ]
    return Rendered(objects, notes[0])


def closed(schema: Any) -> Any:
    """A CRD's schema as JSON Schema: unknown fields are refused, as by a strict API server."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    schema = dict(schema)
    if schema.pop("x-kubernetes-int-or-string", False):
        schema.pop("type", None)
    opened = schema.pop("x-kubernetes-preserve-unknown-fields", False)
    properties = schema.get("properties")
    result = {key: closed(value) for key, value in schema.items() if key != "properties"}
    if isinstance(properties, dict):
        result["properties"] = {key: closed(value) for key, value in properties.items()}
        if not opened:
            result.setdefault("additionalProperties", False)
    return result


@pytest.fixture(scope="session")
def chart() -> Path:
    return CHART


@pytest.fixture(scope="session")
def render() -> Callable[..., Rendered]:
    return render_chart


@pytest.fixture
def full() -> dict[str, Any]:
    """Values that switch everything on."""
    return deepcopy(FULL)


@pytest.fixture(scope="session")
def check_object() -> Callable[[dict[str, Any]], None]:
    """Holds one object against the schema of its kind."""
    service = closed(json.loads(RAY_SERVICE_SCHEMA.read_text()))
    service["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    ray_service = jsonschema.Draft202012Validator(service)

    passed: set[str] = set()  # most objects are the same in most renderings

    def check(found: dict[str, Any]) -> None:
        told = json.dumps(found, sort_keys=True)
        if told in passed:
            return
        if found["kind"] == "RayService":
            ray_service.validate(found)
        elif found["apiVersion"] != PROMETHEUS:
            for version in KUBERNETES_VERSIONS:
                kubernetes_validate.validate(found, version, strict=True)
        passed.add(told)

    return check
