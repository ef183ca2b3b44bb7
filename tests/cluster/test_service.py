"""What a Serve config file may say of models, and what is deployed for it."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest

from blockyard.scheduler.config import PreemptionPolicy
from blockyard.workers.config import WorkerKind

WITNESS = {"model": "witness", "device": "cpu"}


@pytest.fixture(scope="module")
def service() -> Any:
    with warnings.catch_warnings():
        # Ray Serve declares its schemas in a way that pydantic has deprecated.
        warnings.simplefilter("ignore")
        return importlib.import_module("blockyard.cluster.service")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKYARD_CACHE", str(tmp_path))


def test_a_model_takes_what_is_shared_and_what_is_its_own(service: Any) -> None:
    own = {"num_groups": 3, "num_blocks": 64, "preemption": "swap", "group_resource": "yard"}
    [served] = service.served_models(
        {"models": [WITNESS | own], "grpc_port": 7, "num_ingresses": 2}
    )
    config = served.config
    assert (config.kind, config.model.name) == (WorkerKind.WITNESS, "witness")
    assert (config.num_groups, config.num_blocks, config.group_resource) == (3, 64, "yard")
    assert (config.preemption, config.grpc_port) == (PreemptionPolicy.SWAP, 7)
    assert not served.uses_gpu


def test_cuda_takes_gpus(service: Any) -> None:
    [served] = service.served_models({"models": [WITNESS | {"device": "cuda"}]})
    assert served.uses_gpu


def test_a_model_that_guesses_is_found_by_its_name_and_must_fit(
    service: Any, tmp_path: Path
) -> None:
    drafts = WITNESS | {"speculate": "draft", "draft_model": "witness", "draft_weights": "int4"}
    [served] = service.served_models({"models": [drafts]})
    assert served.config.draft is not None
    directory = served.config.draft.directory
    assert served.config.worker(0).draft_dir == directory == served.config.model.directory
    assert served.config.worker(0).draft_weights == "int4"
    for change, message in (
        ({"draft_model": directory}, "a witness guesses for a witness alone"),
        ({"speculate": "ngram"}, "draft model witness is given and speculate is ngram"),
        ({"draft_weights": "int3"}, "draft_weights is 'int3'; known are"),
        ({"pipeline_depth": 2}, "use a depth of 1"),
    ):
        with pytest.raises(ValueError, match=rf"models\[0\] \(witness\): .*{message}"):
            service.served_models({"models": [drafts | change]})
    with pytest.raises(ValueError, match="speculate is draft without a draft model"):
        service.served_models({"models": [WITNESS | {"speculate": "draft"}]})


def test_a_directory_goes_by_its_own_name_unless_given_one(service: Any) -> None:
    [witness] = service.served_models({"models": [WITNESS]})
    directory = witness.config.model.directory
    listed = [{"model": directory, "device": "cpu"}]
    assert service.served_models({"models": listed})[0].config.model.name == Path(directory).name
    assert (
        service.served_models({"models": [listed[0] | {"name": "mine"}]})[0].config.model.name
        == "mine"
    )


def test_two_models_have_two_deployments_behind_one_ingress(service: Any) -> None:
    first = WITNESS | {"name": "a", "deployment": "groups-a", "group_resource": "yard"}
    second = WITNESS | {"name": "b", "deployment": "groups-b"}
    args = {"models": [first, second], "num_ingresses": 2, "ingress_resource": "door"}
    ingress = service.build(args)._bound_deployment
    assert ingress.num_replicas == 2
    assert ingress.ray_actor_options["resources"] == {"door": 1}
    groups = [argument for argument in ingress.init_args if hasattr(argument, "_bound_deployment")]
    deployments = [group._bound_deployment for group in groups]
    assert [deployment.name for deployment in deployments] == ["groups-a", "groups-b"]
    placed = deployments[0]._deployment_config, deployments[0]._replica_config
    assert placed[1].placement_group_bundles[0]["yard"] == 1
    assert placed[1].placement_group_strategy == "STRICT_PACK"
    assert deployments[1]._replica_config.placement_group_strategy == "PACK"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "models is missing or empty"),
        ({"models": []}, "models is missing or empty"),
        ({"models": [{"device": "cpu"}]}, r"models\[0\] has no `model`"),
        ({"models": [WITNESS | {"colour": 1}]}, r"models\[0\] has colour; known are .*block_size"),
        (
            {"models": [WITNESS], "num_blocks": 9},
            "args has num_blocks; known are .*central_resource",
        ),
        ({"models": [{"model": "witness"}]}, r"models\[0\] \(witness\): device is 'auto'"),
        ({"models": [WITNESS | {"num_groups": 0}]}, r"models\[0\] \(witness\): num_groups is 0"),
        ({"models": [WITNESS | {"preemption": "x"}]}, r"models\[0\] \(witness\): 'x'"),
        ({"models": [WITNESS, WITNESS]}, "named more than once: witness"),
        (
            {"models": [WITNESS, WITNESS | {"name": "b"}]},
            "named more than once: groups; give each its own name",
        ),
    ],
)
def test_what_is_wrong_is_named(service: Any, args: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        service.build(args)
