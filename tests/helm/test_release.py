"""A release's whole life by the real Helm client against a stub API server.

The stub keeps objects in memory and holds each written one against the schema of its kind; there is
no Kubernetes behind it, and nothing is deployed anywhere.
"""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import helm_python
import pytest

KINDS = {
    "v1": {
        "Service": "services",
        "ServiceAccount": "serviceaccounts",
        "ConfigMap": "configmaps",
        "PersistentVolumeClaim": "persistentvolumeclaims",
        "Pod": "pods",
    },
    "networking.k8s.io/v1": {"Ingress": "ingresses", "NetworkPolicy": "networkpolicies"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "monitoring.coreos.com/v1": {
        "ServiceMonitor": "servicemonitors",
        "PodMonitor": "podmonitors",
    },
    "ray.io/v1": {"RayService": "rayservices"},
}


def prefix(version: str) -> str:
    return f"/api/{version}" if "/" not in version else f"/apis/{version}"


class StubApi(BaseHTTPRequestHandler):
    """As much of the API as Helm asks for: discovery, and objects that are kept."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, dict[str, Any]]
    check: Callable[[dict[str, Any]], None]

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.objects:
            self._answer(200, self.objects[path])
        elif (found := self._discovered(path)) is not None:
            self._answer(200, found)
        else:
            self._answer(404, status(404, "NotFound", f"{path} not found"))

    def do_POST(self) -> None:
        sent = self._body()
        path = f"{self.path.partition('?')[0]}/{sent['metadata']['name']}"
        if path in self.objects:
            self._answer(409, status(409, "AlreadyExists", f"{path} already exists"))
        else:
            self._keep(path, sent)

    def do_PUT(self) -> None:
        self._keep(self.path.partition("?")[0], self._body())

    def do_PATCH(self) -> None:
        # Server-side apply sends the whole object.
        assert self.headers["Content-Type"] == "application/apply-patch+yaml"
        self._keep(self.path.partition("?")[0], self._body())

    def do_DELETE(self) -> None:
        path = self.path.partition("?")[0]
        self._body()
        gone = self.objects.pop(path, None)
        self._answer(200 if gone else 404, status(200, "Deleted", path))

    def _keep(self, path: str, sent: dict[str, Any]) -> None:
        try:
            self.check(sent)
        except Exception as error:
            self._answer(422, status(422, "Invalid", str(error).partition("\n")[0]))
            return
        kept = {**sent, "metadata": {"uid": path, "resourceVersion": "1", **sent["metadata"]}}
        self.objects[path] = kept
        self._answer(200, kept)

    def _body(self) -> Any:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(raw) if raw else None

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _discovered(self, path: str) -> dict[str, Any] | None:
        if path == "/version":
            return {"major": "1", "minor": "31", "gitVersion": "v1.31.0"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(api_groups())}
        if path == "/openapi/v3":
            return {
                "paths": {
                    prefix(v)[1:]: {"serverRelativeURL": f"/openapi{prefix(v)}"} for v in KINDS
                }
            }
        for version, kinds in KINDS.items():
            if path == prefix(version):
                return {
                    "kind": "APIResourceList",
                    "groupVersion": version,
                    "resources": [resource(kind, name) for kind, name in kinds.items()],
                }
            if path == f"/openapi{prefix(version)}":
                return {"openapi": "3.0.0", "paths": dict(patches(version))}
        return None


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    success = code < 300
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Success" if success else "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def api_groups() -> Iterator[dict[str, Any]]:
    for version in KINDS:
        name, _, number = version.rpartition("/")
        if name:
            told = {"groupVersion": version, "version": number}
            yield {"name": name, "versions": [told], "preferredVersion": told}


def resource(kind: str, name: str) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return {
        "name": name,
        "singularName": kind.lower(),
        "namespaced": True,
        "kind": kind,
        "verbs": verbs,
    }


def patches(version: str) -> Iterator[tuple[str, Any]]:
    """Helm asks whether a kind's PATCH takes `fieldValidation`."""
    for kind, name in KINDS[version].items():
        group, _, number = version.rpartition("/")
        told = {"group": group, "version": number, "kind": kind}
        parameters = [{"name": "fieldValidation", "in": "query"}]
        operation = {"x-kubernetes-group-version-kind": told, "parameters": parameters}
        yield f"{prefix(version)}/namespaces/{{namespace}}/{name}/{{name}}", {"patch": operation}


@pytest.fixture
def kept() -> dict[str, dict[str, Any]]:
    """The objects that the stub holds, by path."""
    return {}


@pytest.fixture
def cluster(
    kept: dict[str, dict[str, Any]], check_object: Callable[[dict[str, Any]], None]
) -> Iterator[helm_python.Config]:
    handler = type("Stub", (StubApi,), {"objects": kept, "check": staticmethod(check_object)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "stub",
        "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}],
        "clusters": [
            {"name": "stub", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "stub", "user": {}}],
    }
    with helm_python.Config(
        kubeconfig_content=json.dumps(kubeconfig), storage_driver="memory", namespace="prod"
    ) as config:
        yield config
    server.shutdown()
    server.server_close()
    thread.join()


def groups(kept: dict[str, dict[str, Any]]) -> int:
    [service] = [found for path, found in kept.items() if "/rayservices/" in path]
    worker_groups = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    replicas: int = worker_groups[-1]["replicas"]
    return replicas


def test_install_upgrade_rollback_uninstall(
    cluster: helm_python.Config,
    kept: dict[str, dict[str, Any]],
    chart: Path,
    full: dict[str, Any],
) -> None:
    cluster.install(chart, "demo", full, namespace="prod")
    assert cluster.status("demo")["status"] == "deployed"
    assert groups(kept) == 1
    kinds = {found["kind"] for found in kept.values()}
    assert {"RayService", "Service", "Ingress", "NetworkPolicy", "PersistentVolumeClaim"} <= kinds
    assert "Pod" not in kinds, "the test pod is for helm test"

    full["models"][1]["groups"] = 4
    full["networkPolicy"] = {"enabled": False}
    cluster.upgrade(chart, "demo", full, namespace="prod")
    assert groups(kept) == 4
    assert not [path for path in kept if "networkpolicies" in path]

    cluster.rollback("demo", version=1)
    assert groups(kept) == 1
    assert [path for path in kept if "networkpolicies" in path]
    revisions = [release["revision"] for release in cluster.history("demo")]
    assert revisions == [1, 2, 3]

    cluster.uninstall("demo")
    # What was fetched outlives the release.
    [claim] = kept.values()
    assert claim["kind"] == "PersistentVolumeClaim"


def test_a_bad_value_changes_nothing(
    cluster: helm_python.Config, kept: dict[str, dict[str, Any]], chart: Path
) -> None:
    cluster.install(chart, "demo", {}, namespace="prod")
    before = dict(kept)
    with pytest.raises(helm_python.HelmError, match="shmSize 8Gi must be under"):
        cluster.upgrade(chart, "demo", {"head": {"shmSize": "8Gi"}}, namespace="prod")
    assert kept == before
    assert [release["revision"] for release in cluster.history("demo")] == [1]
