"""How clients, scrapers and the operator reach the pods, and nobody else."""

from collections.abc import Callable
from typing import Any

RELEASE = {"blockyard/release": "demo"}
INGRESS_PODS = RELEASE | {"blockyard/component": "ingress"}


def test_the_service_leads_to_the_ingress_pods(render: Callable[..., Any]) -> None:
    [service] = render().of_kind("Service")
    assert service["spec"]["selector"] == INGRESS_PODS
    ports = {port["name"]: port for port in service["spec"]["ports"]}
    assert set(ports) == {"grpc", "http", "metrics"}
    # Load balancers and meshes speak HTTP/2 without TLS to it.
    assert ports["grpc"]["appProtocol"] == "kubernetes.io/h2c"
    [proxied] = render({"serveProxy": {"enabled": True}}).of_kind("Service")
    assert [port["name"] for port in proxied["spec"]["ports"]] == [
        *("grpc", "http", "grpc-proxy", "metrics"),
    ]


def test_the_named_ports_are_the_containers(
    render: Callable[..., Any], full: dict[str, Any]
) -> None:
    rendered = render(full)
    [service] = rendered.of_kind("Service")
    ports = {
        port["name"]: port["containerPort"]
        for port in rendered.pods["ingress"]["containers"][0]["ports"]
    }
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)
    used = {
        port["port"]
        for policy in rendered.of_kind("NetworkPolicy")
        for rule in policy["spec"].get("ingress", [])
        for port in rule.get("ports", [])
    }
    head = {port["name"] for port in rendered.pods["head"]["containers"][0]["ports"]}
    assert used <= set(ports) | head


def test_grpc_from_outside(render: Callable[..., Any], full: dict[str, Any]) -> None:
    ingress = render(full).of_kind("Ingress")[0]
    notes = ingress["metadata"]["annotations"]
    assert notes["nginx.ingress.kubernetes.io/backend-protocol"] == "GRPC"
    assert int(notes["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3600
    assert ingress["spec"]["tls"] == [{"hosts": ["llm.example.org"], "secretName": "certificate"}]
    [rule] = ingress["spec"]["rules"]
    [path] = rule["http"]["paths"]
    backend = path["backend"]["service"]
    assert backend == {"name": "demo-blockyard", "port": {"name": "grpc"}}


def test_http_from_outside(render: Callable[..., Any]) -> None:
    for yard_page in (True, False):
        values = {"enabled": True, "host": "llm.example.org", "yardPage": yard_page}
        [ingress] = render({"httpIngress": values}).of_kind("Ingress")
        paths = ingress["spec"]["rules"][0]["http"]["paths"]
        # Metrics, health and the yard page are for insiders unless said otherwise.
        assert [path["path"] for path in paths] == ["/v1", *(["/yard"] if yard_page else [])]
        assert paths[0]["backend"]["service"]["port"] == {"name": "http"}
        notes = ingress["metadata"]["annotations"]
        assert notes["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"


def test_policies_let_in_what_must_come_in(render: Callable[..., Any]) -> None:
    peers = {
        name: [{"namespaceSelector": {"matchLabels": {"name": name}}}]
        for name in ("clients", "monitoring", "operator")
    }
    policies = {
        policy["metadata"]["name"]: policy["spec"]
        for policy in render({"networkPolicy": peers}).of_kind("NetworkPolicy")
    }
    own = policies["demo-blockyard"]
    assert own["podSelector"] == {"matchLabels": RELEASE}
    assert own["policyTypes"] == ["Ingress"]
    inside, scrapers = own["ingress"]
    assert inside == {"from": [{"podSelector": {"matchLabels": RELEASE}}]}
    assert scrapers["from"] == peers["monitoring"]
    clients = policies["demo-blockyard-clients"]
    assert clients["podSelector"] == {"matchLabels": INGRESS_PODS}
    ports = [{"protocol": "TCP", "port": name} for name in ("grpc", "http")]
    assert clients["ingress"] == [{"from": peers["clients"], "ports": ports}]
    operator = policies["demo-blockyard-operator"]
    assert operator["ingress"][0]["from"] == peers["operator"]


def test_egress_can_be_closed(render: Callable[..., Any]) -> None:
    for hub in (True, False):
        values = {"networkPolicy": {"egress": {"enabled": True, "allowHub": hub}}}
        own = render(values).of_kind("NetworkPolicy")[0]["spec"]
        assert own["policyTypes"] == ["Ingress", "Egress"]
        https = {"ports": [{"protocol": "TCP", "port": 443}]}
        assert (https in own["egress"]) is hub


def test_monitors_find_services_and_pods(render: Callable[..., Any], full: dict[str, Any]) -> None:
    rendered = render(full)
    [service] = rendered.of_kind("Service")
    [monitor] = rendered.of_kind("ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    [pods] = rendered.of_kind("PodMonitor")
    [endpoint] = pods["spec"]["podMetricsEndpoints"]
    for name in ("head", "central", "ingress", "engine-large"):
        ports = {port["name"] for port in rendered.pods[name]["containers"][0]["ports"]}
        assert endpoint["port"] in ports


def test_budgets_count_pods(render: Callable[..., Any], full: dict[str, Any]) -> None:
    budgets = {
        budget["metadata"]["name"]: budget["spec"]
        for budget in render(full).of_kind("PodDisruptionBudget")
    }
    assert {name: spec["minAvailable"] for name, spec in budgets.items()} == {
        "demo-blockyard-head": 1,
        "demo-blockyard-central": 1,
        "demo-blockyard-ingress": 1,
        "demo-blockyard-engine": 2,
    }
    # Kubernetes does not know how many pods a Ray cluster should have.
    assert not any("maxUnavailable" in spec for spec in budgets.values())


def test_notes_have_lines_to_paste(render: Callable[..., Any], full: dict[str, Any]) -> None:
    notes = render(full).notes
    for line in (
        '  grpcurl -plaintext -d \'{"model": "Large", "prompt": "Name three colors.", "sampling": '
        '{"max_tokens": 40}}\' 127.0.0.1:443 blockyard.v1.Generation/GenerateStream',
        "  curl -s http://127.0.0.1:9464/metrics",
        '  grpcurl -d \'{"model": "Large", "prompt": "Name three colors."}\' llm.example.org:443 '
        "blockyard.v1.Generation/Generate",
        "  helm test demo -n prod",
    ):
        assert line in notes.splitlines()


def test_notes_show_what_callers_must_show(render: Callable[..., Any]) -> None:
    values = {
        "apiKeys": {"secret": "keys", "testKey": "test.key"},
        "tls": {"secret": "own", "clients": {"caSecret": "people", "testSecret": "tester"}},
    }
    lines = render(values).notes.splitlines()
    begin = lines.index("Ask it:") + 2
    secret = "kubectl -n prod get secret"
    assert lines[begin : begin + 3] == [
        f"  KEY=$({secret} keys -o jsonpath='{{.data.test\\.key}}' | base64 -d)",
        f"  {secret} tester -o jsonpath='{{.data.tls\\.crt}}' | base64 -d > client.crt",
        f"  {secret} tester -o jsonpath='{{.data.tls\\.key}}' | base64 -d > client.key",
    ]
    key = '-H "authorization: Bearer $KEY"'
    stream, ledger, curl = lines[begin + 4 : begin + 7]
    for line in (stream, ledger):
        assert line.startswith(f"  grpcurl -insecure -cert client.crt -key client.key {key} ")
    shown = "  curl -s -k --cert client.crt --key client.key "
    assert curl.startswith(f"{shown}https://127.0.0.1:8000/v1/completions {key} -H 'content")
