"""What a person is told when Ray itself does not come up."""

import importlib
import warnings
from typing import Any

import pytest

from blockyard.cluster.config import ServeConfig
from blockyard.workers.description import ModelDescription


@pytest.fixture(scope="module")
def runtime() -> Any:
    with warnings.catch_warnings():
        # Ray Serve declares its schemas in a way that pydantic has deprecated.
        warnings.simplefilter("ignore")
        return importlib.import_module("blockyard.cluster.runtime")


def test_a_ray_that_does_not_start_is_told_in_a_line(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_out(**options: Any) -> None:
        raise Exception("The current node timed out during startup.\nlong story")

    monkeypatch.setattr(runtime.ray, "init", time_out)
    with (
        pytest.raises(runtime.StartFailed, match=r"timed out during startup\. If this machine"),
        runtime.ray_cluster(None),
    ):
        raise AssertionError("nothing was started")


@pytest.mark.parametrize(
    ("haproxy", "owns_cluster", "host"),
    [
        ("1", False, "0.0.0.0"),  # HAProxy of one node connects to replicas of another
        ("1", True, "127.0.0.1"),
        ("0", False, "127.0.0.1"),
        (None, False, "127.0.0.1"),
    ],
)
def test_proxies_can_be_reached_from_other_nodes_where_they_have_to_be(
    runtime: Any,
    monkeypatch: pytest.MonkeyPatch,
    haproxy: str | None,
    owns_cluster: bool,
    host: str,
) -> None:
    if haproxy is None:
        monkeypatch.delenv("RAY_SERVE_ENABLE_HA_PROXY", raising=False)
    else:
        monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", haproxy)
    told: dict[str, Any] = {}

    def start(**options: Any) -> None:
        told.update(options)
        raise TimeoutError("enough")

    monkeypatch.setattr(runtime.serve, "start", start)
    monkeypatch.setattr(runtime.ray, "cluster_resources", dict)
    config = ServeConfig(
        ModelDescription("m", "/nowhere", "Witness", 64, 99, ()), serve_grpc_port=9000
    )
    with (
        pytest.raises(runtime.StartFailed),
        runtime.deploy(config, lambda stage: None, owns_cluster),
    ):
        raise AssertionError("nothing was started")
    assert told["http_options"].host == host
