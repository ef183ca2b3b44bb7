"""What every kind of pod must have: places, limits, probes, a gentle end, and few rights."""

from collections.abc import Callable
from typing import Any

import pytest

from blockyard.cluster.client import API_KEY_VARIABLE
from blockyard.cluster.tls import TLS_CA_VARIABLE, TLS_CERT_VARIABLE, TLS_KEY_VARIABLE

PODS = ("head", "central", "ingress", "engine-large", "engine-small")
EVERYWHERE = [{"key": "dedicated", "operator": "Equal", "value": "llm", "effect": "NoSchedule"}]


def secret_files(pod: dict[str, Any]) -> dict[str, str]:
    """Files of secrets as the main container finds them, and the secret that each is of."""
    return {
        f"{mount['mountPath']}/{item['path']}": volume["secret"]["secretName"]
        for volume in pod.get("volumes", [])
        for mount in main_container(pod).get("volumeMounts", [])
        if mount["name"] == volume["name"] and "secret" in volume
        for item in volume["secret"]["items"]
    }


def main_container(pod: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod["containers"][0]
    return container


def test_the_groups_of_pods(render: Callable[..., Any], full: dict[str, Any]) -> None:
    rendered = render(full)
    assert set(rendered.pods) == {*PODS, "test"}
    groups = rendered.ray_service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    replicas = {group["groupName"]: group["replicas"] for group in groups}
    assert replicas == {"central": 1, "ingress": 2, "engine-large": 3, "engine-small": 1}
    for group in groups:
        # Nothing scales them yet, so that other limits would promise what does not happen.
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]


def test_few_rights(render: Callable[..., Any], full: dict[str, Any]) -> None:
    for pod in render(full).pods.values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            assert container["image"].endswith("@sha256:" + "a" * 64)


@pytest.mark.parametrize("component", ["head", "central", "ingress", "engine", "test"])
def test_tolerations_and_selectors_reach_their_pods(
    render: Callable[..., Any], component: str
) -> None:
    placed = {"tolerations": EVERYWHERE, "nodeSelector": {"pool": "llm"}}
    for name, pod in render({component: placed}).pods.items():
        wanted = name == component or name.startswith(f"{component}-")
        assert (pod.get("tolerations") == EVERYWHERE) is wanted, name
        assert (pod.get("nodeSelector") == {"pool": "llm"}) is wanted, name


def test_a_gpu_goes_to_the_engine_alone(render: Callable[..., Any], full: dict[str, Any]) -> None:
    rendered = render(full)
    engine = rendered.pods["engine-large"]
    assert main_container(engine)["resources"] == {
        "requests": {"cpu": "2", "memory": "8Gi"},
        "limits": {"memory": "128Gi", "nvidia.com/gpu": "4"},
    }
    assert engine["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert engine["runtimeClassName"] == "nvidia"
    groups = rendered.ray_service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    started = {group["groupName"]: group["rayStartParams"] for group in groups}
    assert started["engine-large"]["num-gpus"] == "4"
    for name in set(PODS) - {"engine-large"}:
        assert "nvidia.com/gpu" not in main_container(rendered.pods[name])["resources"]["limits"]
    # Each rank takes a CPU of Ray's, the engine a little.
    assert started["engine-large"]["num-cpus"] == "5"


def test_the_head_does_no_model_work(render: Callable[..., Any]) -> None:
    cluster = render().ray_service["spec"]["rayClusterConfig"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    pods = render().pods
    assert "initContainers" not in pods["head"]
    assert "initContainers" not in pods["central"]


def test_models_are_fetched_where_they_are_read(
    render: Callable[..., Any], full: dict[str, Any]
) -> None:
    pods = render(full).pods
    fetched = {
        name: [container["command"][3] for container in pod.get("initContainers", [])]
        for name, pod in pods.items()
    }
    assert fetched == {
        "head": [],
        "central": [],
        "ingress": ["org/large@v1.0", "smollm2-135m"],
        "engine-large": ["org/large@v1.0"],
        "engine-small": ["smollm2-135m"],
        "test": [],
    }
    for container in pods["ingress"]["initContainers"]:
        environment = {entry["name"]: entry for entry in container["env"]}
        assert environment["BLOCKYARD_CACHE"]["value"] == "/models"
        assert environment["HTTPS_PROXY"]["value"] == "http://proxy:3128"
        token = environment["HF_TOKEN"]["valueFrom"]["secretKeyRef"]
        assert token == {"name": "hub", "key": "token"}
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for pod in pods.values()
        for volume in pod.get("volumes", [])
        if volume["name"] == "models"
    ]
    assert claims == ["demo-blockyard-models"] * 3


def test_nothing_is_fetched_into_a_claim_that_is_read_only(render: Callable[..., Any]) -> None:
    storage = {"type": "existingClaim", "existingClaim": "mine", "readOnly": True}
    for pod in render({"modelStorage": storage}).pods.values():
        assert "initContainers" not in pod


def test_shared_memory_is_a_volume_of_its_own(
    render: Callable[..., Any], full: dict[str, Any]
) -> None:
    pods = render(full).pods
    sizes = {}
    for name in PODS:
        [sizes[name]] = [
            volume["emptyDir"] for volume in pods[name]["volumes"] if volume["name"] == "shm"
        ]
        assert {"name": "shm", "mountPath": "/dev/shm"} in main_container(pods[name])[
            "volumeMounts"
        ]
    assert sizes["engine-large"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert sizes["head"] == {"medium": "Memory", "sizeLimit": "256Mi"}


def test_three_probes(render: Callable[..., Any]) -> None:
    pods = render({"startup": {"budgetSeconds": 3601, "raySeconds": 60}}).pods
    for name in ("head", "central", "ingress", "engine-smollm2-135m"):
        container = main_container(pods[name])
        startup = container["startupProbe"]
        budget = startup["periodSeconds"] * startup["failureThreshold"]
        assert (3601 <= budget < 3611) if name == "ingress" else (budget == 60)
        # Being busy or without a model must not get a pod killed.
        assert "httpGet" in container["livenessProbe"]
    serving = {"grpc": {"port": 50051}}
    ready = main_container(pods["ingress"])
    assert serving.items() <= ready["readinessProbe"].items()
    assert serving.items() <= ready["startupProbe"].items()
    head = main_container(pods["head"])["readinessProbe"]["httpGet"]
    assert head == {"path": "/api/gcs_healthz", "port": 8265}


def test_a_pod_may_take_longer_to_end_than_its_requests(render: Callable[..., Any]) -> None:
    pods = render({"server": {"drainSeconds": 300, "preStopSeconds": 20}}).pods
    for name in ("central", "ingress", "engine-smollm2-135m"):
        command = main_container(pods[name])["lifecycle"]["preStop"]["exec"]["command"]
        options = dict(zip(command[3::2], command[4::2], strict=True))
        assert command[:3] == ["python", "-m", "blockyard.cluster.deploy.leave_node"]
        assert options == {"--wait-seconds": "20", "--drain-seconds": "310"}
        assert pods[name]["terminationGracePeriodSeconds"] > 20 + 310
    # The head must outlast the drains, which it directs.
    assert main_container(pods["head"])["lifecycle"]["preStop"]["exec"]["command"] == [
        "sleep",
        "330",
    ]
    assert pods["head"]["terminationGracePeriodSeconds"] > 330


def test_pods_keep_their_labels_when_only_the_chart_changes(render: Callable[..., Any]) -> None:
    """The operator replaces a whole cluster when a pod's template changes."""
    cluster = render().ray_service["spec"]["rayClusterConfig"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        labels = group["template"]["metadata"]["labels"]
        assert set(labels) <= {"blockyard/release", "blockyard/component", "blockyard/model"}


def test_authentication(render: Callable[..., Any]) -> None:
    for wanted in (True, False):
        rendered = render({"ray": {"tokenAuthentication": wanted}})
        cluster = rendered.ray_service["spec"]["rayClusterConfig"]
        assert cluster["authOptions"] == {"mode": "token" if wanted else "disabled"}
        off = {"name": "RAY_AUTH_MODE", "value": "disabled"}
        assert (off in main_container(rendered.pods["ingress"])["env"]) is not wanted


def test_keys_are_where_callers_are_let_in(render: Callable[..., Any]) -> None:
    rendered = render({"apiKeys": {"secret": "yard-keys", "testKey": "test"}})
    file = rendered.serve_config["applications"][0]["args"]["api_keys_file"]
    for name, pod in rendered.pods.items():
        assert list(secret_files(pod)) == ([file] if name == "ingress" else []), name
    [shown] = main_container(rendered.pods["test"])["env"]
    assert shown["name"] == API_KEY_VARIABLE
    assert shown["valueFrom"]["secretKeyRef"] == {"name": "yard-keys", "key": "test"}
    assert "api_keys_file" not in render().serve_config["applications"][0]["args"]


def test_pods_follow_the_load_where_that_is_wanted(render: Callable[..., Any]) -> None:
    model = {"name": "a", "groups": 2, "device": "cpu"}
    for groups, told in (
        (2, (2, 2, 2)),
        ({"min": 2, "max": 4}, (2, 2, 4)),
        ({"min": 0, "max": 3}, (1, 0, 3)),
    ):
        rendered = render({"models": [model | {"groups": groups}]})
        cluster = rendered.ray_service["spec"]["rayClusterConfig"]
        [engine] = [g for g in cluster["workerGroupSpecs"] if g["groupName"] == "engine-a"]
        assert (engine["replicas"], engine["minReplicas"], engine["maxReplicas"]) == told
        scales = isinstance(groups, dict)
        assert cluster.get("enableInTreeAutoscaling", False) is scales
        # The autoscaler beside the head asks Kubernetes for pods; nobody else may.
        for name, pod in rendered.pods.items():
            assert pod["automountServiceAccountToken"] is (scales and name == "head")
        if scales:
            options = cluster["autoscalerOptions"]
            assert options["version"] == "v2"
            assert options["securityContext"]["allowPrivilegeEscalation"] is False


def test_tls_is_where_clients_come_in(render: Callable[..., Any]) -> None:
    rendered = render({"tls": {"secret": "yard-tls", "keyKey": "private.pem"}})
    told = rendered.serve_config["applications"][0]["args"]["tls"]
    assert told == {
        "certificate": "/etc/blockyard-tls/tls.crt",
        "key": "/etc/blockyard-tls/private.pem",
    }
    mounted = {name: list(secret_files(pod)) for name, pod in rendered.pods.items()}
    [shown] = main_container(rendered.pods["test"])["env"]
    assert shown == {"name": TLS_CA_VARIABLE, "value": "/etc/blockyard-tls/ca.crt"}
    # The test trusts who has signed, and never sees the private key.
    assert {name: files for name, files in mounted.items() if files} == {
        "ingress": list(told.values()),
        "test": [shown["value"]],
    }
    # Kubernetes' gRPC probe speaks no TLS.
    ready = main_container(rendered.pods["ingress"])
    for probe in ("startupProbe", "readinessProbe"):
        assert "grpc" not in ready[probe]
        assert ready[probe]["httpGet"] == {"path": "/ready", "port": 8000, "scheme": "HTTPS"}
    [service] = rendered.of_kind("Service")
    protocols = {port["name"]: port.get("appProtocol") for port in service["spec"]["ports"]}
    assert protocols == {"grpc": "https", "http": "https", "metrics": None}
    assert (
        "grpcurl -insecure -d" in rendered.notes and "http://127.0.0.1:8000" not in rendered.notes
    )
    assert "tls" not in render().serve_config["applications"][0]["args"]


def test_clients_show_certificates_where_that_is_wanted(render: Callable[..., Any]) -> None:
    clients = {"caSecret": "people", "caKey": "root.pem", "testSecret": "tester"}
    rendered = render({"tls": {"secret": "yard-tls", "clients": clients}})
    told = rendered.serve_config["applications"][0]["args"]["tls"]
    assert told["client_ca"] == "/etc/blockyard-tls-clients/root.pem"
    shown = {each["name"]: each["value"] for each in main_container(rendered.pods["test"])["env"]}
    files = {name: secret_files(pod) for name, pod in rendered.pods.items()}
    # What each process is told to read is there, from the secret that it belongs to.
    assert {name: found for name, found in files.items() if found} == {
        "ingress": {
            told["certificate"]: "yard-tls",
            told["key"]: "yard-tls",
            told["client_ca"]: "people",
        },
        "test": {
            shown[TLS_CA_VARIABLE]: "yard-tls",
            shown[TLS_CERT_VARIABLE]: "tester",
            shown[TLS_KEY_VARIABLE]: "tester",
        },
    }
    # Kubernetes' probes have no certificate; the metrics port asks for none.
    ingress = main_container(rendered.pods["ingress"])
    [metrics] = (port for port in ingress["ports"] if port["name"] == "metrics")
    for probe in ("startupProbe", "readinessProbe"):
        assert "grpc" not in ingress[probe]
        assert ingress[probe]["httpGet"] == {"path": "/ready", "port": metrics["containerPort"]}


def test_the_test_pod_asks_every_model(render: Callable[..., Any], full: dict[str, Any]) -> None:
    rendered = render(full)
    [test] = rendered.of_kind("Pod")
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    asked = [container["args"][0] for container in rendered.pods["test"]["containers"]]
    assert asked == ["--model=Large", "--model=small"]
    for container in rendered.pods["test"]["containers"]:
        assert "--address=demo-blockyard:443" in container["args"]
