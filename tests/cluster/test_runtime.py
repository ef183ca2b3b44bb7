"""What a person is told when Ray itself does not come up."""

import importlib
import warnings
from typing import Any

import pytest


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
