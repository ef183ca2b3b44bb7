"""Values that could not work are refused with words that say which and why."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import helm_python
import pytest

MODEL = {"name": "a", "groups": 1, "device": "cpu"}
DRAFT = {"speculate": "draft", "draftModel": "b"}
CLAIM = {"type": "existingClaim", "existingClaim": "mine"}
ADMIN = {"enabled": True}
KEYS = {"secret": "s", "testKey": "t"}

BY_THE_SCHEMA: list[tuple[dict[str, Any], str]] = [
    ({"colour": "red"}, "additional properties 'colour' not allowed"),
    ({"head": {"colour": 1}}, "at '/head': additional properties 'colour' not allowed"),
    ({"models": []}, "at '/models': minItems: got 0, want 1"),
    ({"models": [{"name": "a"}]}, "missing properties 'groups', 'device'"),
    ({"models": [MODEL | {"name": "Not_One"}]}, "at '/models/0/name'"),
    ({"models": [MODEL | {"name": "a" * 31}]}, "at '/models/0/name': maxLength: got 31, want 30"),
    ({"models": [MODEL | {"groups": 0}]}, "at '/models/0/groups': minimum: got 0, want 1"),
    ({"models": [MODEL | {"groups": "2"}]}, "at '/models/0/groups'"),
    ({"models": [MODEL | {"groups": {"min": 1}}]}, "at '/models/0/groups': missing property 'max'"),
    ({"models": [MODEL | {"groups": {"min": 0, "max": 0}}]}, "at '/models/0/groups/max': minimum"),
    ({"models": [MODEL | {"groups": {"min": -1, "max": 2}}]}, "at '/models/0/groups/min'"),
    ({"models": [MODEL | {"device": "tpu"}]}, "at '/models/0/device'"),
    ({"models": [MODEL | {"device": "auto"}]}, "at '/models/0/device'"),
    ({"models": [MODEL | {"tensorParallel": 0}]}, "at '/models/0/tensorParallel': minimum"),
    ({"models": [MODEL | {"id": "a/b/c"}]}, "at '/models/0/id'"),
    ({"models": [MODEL | DRAFT | {"draftModel": "a/b/c"}]}, "at '/models/0/draftModel'"),
    ({"models": [MODEL | DRAFT | {"draftWeights": "int3"}]}, "at '/models/0/draftWeights'"),
    ({"models": [MODEL | {"kvDtype": "int4"}]}, "at '/models/0/kvDtype'"),
    ({"models": [MODEL | {"pipelineDepth": 3}]}, "at '/models/0/pipelineDepth': maximum"),
    ({"models": [MODEL | {"groups": {"min": 1, "max": 2, "idleSeconds": 0}}]}, "idleSeconds'"),
    ({"server": {"resumeSeconds": 0}}, "at '/server/resumeSeconds': minimum"),
    ({"admin": {"weightsRoot": "models"}}, "at '/admin/weightsRoot'"),
    ({"models": [MODEL | {"kvMemory": "lots"}]}, "at '/models/0/kvMemory'"),
    ({"modelDefaults": {"dtype": "float64"}}, "at '/modelDefaults/dtype'"),
    ({"modelDefaults": {"maxStepTokens": 1}}, "at '/modelDefaults/maxStepTokens': minimum"),
    ({"image": {"repository": ""}}, "at '/image/repository': minLength"),
    ({"image": {"digest": "sha256:12"}}, "at '/image/digest'"),
    ({"modelStorage": {"type": "existingClaim"}}, "at '/modelStorage/existingClaim': minLength"),
    ({"modelStorage": {"readOnly": True}}, "at '/modelStorage/readOnly'"),
    ({"modelStorage": {"type": "claim", "size": ""}}, "at '/modelStorage/size'"),
    ({"apiKeys": {"secret": "s"}}, "at '/apiKeys/testKey': minLength"),
    ({"tls": {"certificate": "x"}}, "at '/tls': additional properties 'certificate' not allowed"),
    ({"tls": {"secret": "s", "caKey": ""}}, "at '/tls/caKey': minLength"),
    ({"tls": {"clients": {"caSecret": "s", "testSecret": "t"}}}, "at '/tls/secret': minLength"),
    ({"tls": {"secret": "s", "clients": {"caSecret": "s"}}}, "/tls/clients/testSecret': minLength"),
    ({"tls": {"clients": {"ca": "x"}}}, "at '/tls/clients': additional properties 'ca' not"),
    ({"logs": {"format": "xml"}}, "at '/logs/format'"),
    ({"logs": {"level": "info"}}, "at '/logs/level'"),
    ({"tracing": {"endpoint": "collector:4317"}}, "at '/tracing/endpoint'"),
    ({"server": {"grpcPort": 80}}, "at '/server/grpcPort': minimum: got 80, want 1,024"),
    ({"server": {"drainSeconds": 0}}, "at '/server/drainSeconds': minimum: got 0, want 1"),
    ({"ray": {"version": "nightly"}}, "at '/ray/version'"),
    ({"ray": {"gcsFaultTolerance": {"enabled": True}}}, "redisAddress': minLength"),
    ({"grpcIngress": {"enabled": True}}, "at '/grpcIngress/host': minLength"),
    ({"networkPolicy": {"clients": []}}, "at '/networkPolicy/clients': minItems"),
    ({"podDisruptionBudget": {"ingress": "50%"}}, "at '/podDisruptionBudget/ingress'"),
    ({"ingress": {"replicas": 0}}, "at '/ingress/replicas': minimum"),
    ({"monitoring": {"serviceMonitor": {"interval": "often"}}}, "serviceMonitor/interval"),
]

BY_THE_CHART: list[tuple[dict[str, Any], str]] = [
    (
        {"models": [MODEL | {"groups": {"min": 3, "max": 2}}]},
        "models: a has groups from 3 to 2; min must not be above max",
    ),
    ({"models": [MODEL, MODEL]}, "models: names must differ, these do not: a, a"),
    (
        {"models": [MODEL, MODEL | {"name": "b", "servedName": "a"}]},
        "models: names must differ, these do not: a, a",
    ),
    (
        {"models": [MODEL | {"id": "/elsewhere/a"}], "modelStorage": CLAIM},
        "models: a is at /elsewhere/a, which is not under modelStorage.mountPath (/models)",
    ),
    (
        {"models": [MODEL | {"id": "/models/a"}]},
        "models: a is a directory; set modelStorage.type to the claim that holds it",
    ),
    (
        {"models": [MODEL | {"revision": "main"}]},
        "models: a has a revision, but only a hub repository (org/name) has revisions",
    ),
    (
        {"models": [MODEL | {"device": "cuda", "weights": "int8"}]},
        "models: a has weights int8, which is for CPUs, but it runs on a GPU",
    ),
    (
        {"models": [MODEL | {"device": "cuda", "kvDtype": "int8"}]},
        "models: a has kvDtype int8, which is for CPUs, but it runs on a GPU",
    ),
    (
        {"models": [MODEL], "modelDefaults": {"kvDtype": "fp8"}},
        "models: a has kvDtype fp8, which is for GPUs, but its device is cpu",
    ),
    (
        {"models": [MODEL | {"speculate": "ngram", "pipelineDepth": 2}]},
        "models: a has speculate ngram with pipelineDepth 2; guesses need a depth of 1",
    ),
    (
        {"models": [MODEL | {"speculate": "draft"}]},
        "models: a has speculate draft and no draftModel; name one",
    ),
    (
        {"models": [MODEL | {"speculate": "ngram", "draftModel": "b"}]},
        "models: a has a draftModel or draftWeights with speculate ngram; say speculate draft",
    ),
    (
        {"models": [MODEL | DRAFT | {"device": "cuda", "draftWeights": "int4"}]},
        "models: a has draftWeights int4, which is for CPUs, but it runs on a GPU",
    ),
    (
        {"models": [MODEL | DRAFT | {"draftModel": "/b"}]},
        "models: a has a draftModel at /b, which is not under modelStorage.mountPath (/models)",
    ),
    (
        {"models": [MODEL | DRAFT | {"draftModel": "/models/b"}]},
        "models: a has a directory as draftModel; set modelStorage.type to the claim",
    ),
    ({"admin": {"enabled": True}}, "admin.enabled without apiKeys.secret: everybody who reaches"),
    ({"admin": {"weightsRoot": "/models/a"}}, "admin.weightsRoot without admin.enabled"),
    (
        {"admin": ADMIN | {"weightsRoot": "/elsewhere"}, "apiKeys": KEYS, "modelStorage": CLAIM},
        "admin.weightsRoot is /elsewhere, which is not under modelStorage.mountPath (/models)",
    ),
    (
        {"admin": ADMIN | {"weightsRoot": "/models/other"}, "apiKeys": KEYS},
        "admin.weightsRoot is a directory that all pods have; set modelStorage.type",
    ),
    (
        {"apiKeys": {"secret": "s", "testKey": "t"}, "serveProxy": {"enabled": True}},
        "apiKeys and serveProxy do not go together",
    ),
    (
        {"tls": {"secret": "s"}, "serveProxy": {"enabled": True}},
        "tls and serveProxy do not go together",
    ),
    ({"server": {"httpPort": 9464}}, "server: grpcPort, httpPort and metricsPort must differ"),
    ({"models": [MODEL | {"device": "cuda", "threads": 4}]}, "models: a has threads, but"),
    ({"models": [MODEL | {"gpu": {"product": "x"}}]}, "models: a has gpu, but its device is cpu"),
    (
        {"head": {"shmSize": "4Gi"}},
        "head: shmSize 4Gi must be under the memory limit 4Gi, which it counts against",
    ),
    (
        {"models": [MODEL | {"engine": {"shmSize": "9Gi"}}]},
        "engine (a): shmSize 9Gi must be under the memory limit 8Gi, which it counts against",
    ),
    (
        {"ingress": {"shmSize": "64Mi"}},
        "ingress: shmSize 64Mi is under ray.objectStoreBytes (134217728), which lives in it",
    ),
    ({"head": {"resources": {"limits": {"memory": "4 GB"}}}}, '"4 GB" is no amount of memory'),
    (
        {"modelStorage": {"type": "claim", "readOnly": True}},
        "modelStorage.readOnly is for existing",
    ),
    (
        {"podDisruptionBudget": {"ingress": 2}, "ingress": {"replicas": 2}},
        "podDisruptionBudget.ingress is 2 of 2 pods; no node could ever be drained",
    ),
]


@pytest.mark.parametrize(("values", "words"), BY_THE_SCHEMA)
def test_the_schema_names_the_value(
    chart: Path, render: Callable[..., Any], values: dict[str, Any], words: str
) -> None:
    with pytest.raises(helm_python.HelmValuesError) as refusal:
        render(values)
    assert words in str(refusal.value)
    assert helm_python.lint(chart, values)["errors"]


@pytest.mark.parametrize(("values", "words"), BY_THE_CHART)
def test_the_chart_says_what_does_not_go_together(
    render: Callable[..., Any], values: dict[str, Any], words: str
) -> None:
    with pytest.raises(helm_python.HelmRenderError) as refusal:
        render(values)
    assert words in str(refusal.value)


def test_a_bad_release_name_is_refused() -> None:
    with pytest.raises(helm_python.HelmInvalidArgError):
        helm_python.validate_release_name("Bad_Name")
