"""What the chart renders, over a matrix of values, holds against the schema of every kind."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import pytest

CPU = {"name": "a", "groups": 1, "device": "cpu"}
CUDA = {"name": "a", "groups": 1, "device": "cuda"}

MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "names": {"nameOverride": "yard", "commonLabels": {"a": "b"}},
    "full name": {"fullnameOverride": "x" * 40},
    "tag": {"image": {"repository": "r", "tag": "7", "pullSecrets": [{"name": "s"}]}},
    "one gpu": {"models": [CUDA]},
    "other gpus": {"models": [CUDA | {"gpu": {"resource": "amd.com/gpu"}}]},
    "two models": {"models": [CPU, CUDA | {"name": "b", "groups": 2}]},
    "witness": {"models": [CPU | {"id": "witness", "blocks": 64, "hostBlocks": 0}]},
    "revision": {"models": [CPU | {"id": "org/a", "revision": "main"}]},
    "directory": {
        "models": [CPU | {"id": "/models/a"}],
        "modelStorage": {"type": "existingClaim", "existingClaim": "mine", "readOnly": True},
    },
    "claim": {"modelStorage": {"type": "claim", "accessModes": ["ReadWriteOnce"]}},
    "no size": {"modelStorage": {"type": "emptyDir", "size": ""}},
    "token": {"huggingFace": {"tokenSecret": "hub", "tokenKey": "key"}},
    "proxy in Python": {"serveProxy": {"enabled": True, "haproxy": False}},
    "HAProxy": {"serveProxy": {"enabled": True, "port": 9001}},
    "keys": {"apiKeys": {"secret": "keys", "testKey": "test"}},
    "scaling": {"models": [CPU | {"groups": {"min": 0, "max": 3}}, CUDA | {"name": "b"}]},
    "TLS": {"tls": {"secret": "certificate"}},
    "TLS and keys": {
        "tls": {"secret": "certificate", "caKey": "root.pem"},
        "apiKeys": {"secret": "keys", "testKey": "test"},
    },
    "clients with certificates": {
        "tls": {"secret": "certificate", "clients": {"caSecret": "people", "testSecret": "tester"}},
    },
    "traces": {"tracing": {"endpoint": "http://collector:4318/v1/traces"}},
    "logs": {"logs": {"format": "text", "level": "DEBUG", "prompts": True}},
    "no token": {"ray": {"tokenAuthentication": False, "upgrade": "None"}},
    "node port": {"service": {"type": "NodePort", "annotations": {"a": "b"}}},
    "ingress": {"grpcIngress": {"enabled": True, "host": "h.example.org"}},
    "no policies": {"networkPolicy": {"enabled": False}},
    "egress": {"networkPolicy": {"egress": {"enabled": True, "allowHub": False}}},
    "no budgets": {"podDisruptionBudget": {"ingress": 0}},
    "no account": {"serviceAccount": {"create": False, "name": "other"}},
    "account": {"serviceAccount": {"name": "mine", "annotations": {"a": "b"}}},
    "placed": {
        "head": {
            "nodeSelector": {"pool": "small"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "zone",
                    "whenUnsatisfiable": "DoNotSchedule",
                }
            ],
            "priorityClassName": "high",
            "runtimeClassName": "runc",
            "podAnnotations": {"a": "b"},
            "podLabels": {"c": "d"},
            "extraEnv": [{"name": "A", "value": "1"}],
        }
    },
    "volumes": {
        "extraVolumes": [{"name": "v", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
        "extraEnvFrom": [{"secretRef": {"name": "s"}}],
    },
    "objects as text": {
        "extraObjects": ["apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n"]
    },
}


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_every_object_holds_against_its_schema(
    chart: Path,
    render: Callable[..., Any],
    check_object: Callable[[dict[str, Any]], None],
    values: dict[str, Any],
) -> None:
    report = helm_python.lint(chart, values, strict=True)
    assert not report["errors"], report
    rendered = render(values)
    for found in rendered.objects:
        check_object(found)
    names = [(found["kind"], found["metadata"]["name"]) for found in rendered.objects]
    assert len(names) == len(set(names))


def test_all_at_once(
    render: Callable[..., Any],
    check_object: Callable[[dict[str, Any]], None],
    full: dict[str, Any],
) -> None:
    rendered = render(full)
    for found in rendered.objects:
        check_object(found)
    kinds = {found["kind"] for found in rendered.objects}
    assert kinds == {
        *("RayService", "Service", "Ingress", "NetworkPolicy", "PodDisruptionBudget"),
        *("ServiceAccount", "PersistentVolumeClaim", "ServiceMonitor", "PodMonitor"),
        *("ConfigMap", "Pod"),
    }
    ours = [found for found in rendered.objects if found["metadata"]["name"] != "demo-more"]
    for found in ours:
        assert found["metadata"]["namespace"] == "prod"
        assert found["metadata"]["labels"]["team"] == "yard"
        assert found["metadata"]["annotations"]["note"] == "all"


def test_the_schema_of_a_ray_service_refuses_what_it_does_not_know(
    render: Callable[..., Any], check_object: Callable[[dict[str, Any]], None]
) -> None:
    """The check that the others rest on finds faults."""
    good = render().ray_service
    check_object(good)
    for path, value in [
        (("spec", "serveConfig"), "x"),
        (("spec", "rayClusterConfig", "autoscaler"), True),
        (("spec", "rayClusterConfig", "workerGroupSpecs", 0, "minReplicas"), "1"),
        (("spec", "rayClusterConfig", "headGroupSpec", "template", "spec", "shm"), 1),
    ]:
        bad = deepcopy(good)
        place: Any = bad
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            check_object(bad)


@pytest.mark.parametrize("name", ["demo", "blockyard", "a" * 53])
def test_names_leave_room_for_what_the_operator_adds(render: Callable[..., Any], name: str) -> None:
    helm_python.validate_release_name(name)
    rendered = render(name=name)
    assert all(len(found["metadata"]["name"]) <= 60 for found in rendered.objects)
    assert len(rendered.ray_service["metadata"]["name"]) <= 40
    assert "--" not in rendered.ray_service["metadata"]["name"]
