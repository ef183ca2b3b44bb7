"""The Serve application: a deployment of groups for each model, and one of ingresses for all.

Only says what is deployed with which resources; what runs inside is in `group_replica.py` and
`ingress_replica.py`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from blockyard.cluster.config import ServeConfig
from blockyard.cluster.group_replica import GroupReplica
from blockyard.cluster.ingress_replica import IngressReplica

__all__ = ["APP_NAME", "GROUP_DEPLOYMENT", "INGRESS_DEPLOYMENT", "ServedModel", "build_app"]

APP_NAME = "blockyard"
GROUP_DEPLOYMENT = "groups"
INGRESS_DEPLOYMENT = "ingress"

SCALING_POLICY = "blockyard.cluster.autoscale:ServedScaling"
_SMALL_CPU = 0.1
"""Engines and ingresses wait for others most of the time."""
_HEALTH_PERIOD_SECONDS = 2.0
_HEALTH_TIMEOUT_SECONDS = 30.0
_MAX_ONGOING_REQUESTS = 100_000
"""Serve's default of 5 would cap a replica; our own queue limits are the ones that count."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model of an application: its configuration, and the name of its groups' deployment."""

    config: ServeConfig
    uses_gpu: bool
    deployment: str = GROUP_DEPLOYMENT


def build_app(models: Sequence[ServedModel]) -> Application:
    """Describe the deployment of one or more models behind the ingresses of the first.

    Raises:
        ValueError: two models have the same name, or their groups the same deployment.
    """
    for names in ([each.config.model.name for each in models], [m.deployment for m in models]):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"named more than once: {', '.join(twice)}; give each its own name")
    config = models[0].config
    ingress = serve.deployment(
        name=INGRESS_DEPLOYMENT,
        num_replicas=config.num_ingresses,
        ray_actor_options={"num_cpus": _SMALL_CPU, "resources": _unit(config.ingress_resource)},
        max_ongoing_requests=_MAX_ONGOING_REQUESTS,
        health_check_period_s=_HEALTH_PERIOD_SECONDS,
        health_check_timeout_s=_HEALTH_TIMEOUT_SECONDS,
        graceful_shutdown_timeout_s=_grace_seconds(config),
    )(IngressReplica)
    return ingress.bind(tuple(each.config for each in models), *(_groups(each) for each in models))


def _groups(model: ServedModel) -> Application:
    config = model.config
    rank_bundle = {"CPU": 1.0, "GPU": 1.0} if model.uses_gpu else {"CPU": 1.0}
    engine_bundle = {"CPU": _SMALL_CPU} | _unit(config.group_resource)
    deployment = serve.deployment(
        name=model.deployment,
        **_number(config),
        ray_actor_options={"num_cpus": _SMALL_CPU, "resources": _unit(config.group_resource)},
        placement_group_bundles=[engine_bundle, *([rank_bundle] * config.num_ranks)],
        # A node that offers the resource was made for a whole group.
        placement_group_strategy="PACK" if config.group_resource is None else "STRICT_PACK",
        max_ongoing_requests=_MAX_ONGOING_REQUESTS,
        health_check_period_s=_HEALTH_PERIOD_SECONDS,
        health_check_timeout_s=_HEALTH_TIMEOUT_SECONDS,
        graceful_shutdown_timeout_s=_grace_seconds(config),
    )(GroupReplica)
    return deployment.bind(config, model.uses_gpu)


def _number(config: ServeConfig) -> dict[str, Any]:
    """How many groups there are, in Serve's words: fixed, or as our policy says at each moment.

    The policy knows all delays itself, so Serve's own are off.
    """
    policy = config.scaling
    if policy is None:
        return {"num_replicas": config.num_groups}
    told = {"model": config.model.name, "places": config.max_running, "policy": asdict(policy)}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=policy.min_groups,
            initial_replicas=config.first_groups,
            max_replicas=policy.max_groups,
            upscale_delay_s=0,
            downscale_delay_s=0,
            downscale_to_zero_delay_s=0,
            policy=AutoscalingPolicy(policy_function=SCALING_POLICY, policy_kwargs=told),
        )
    }


def _unit(resource: str | None) -> dict[str, float]:
    return {} if resource is None else {resource: 1.0}


def _grace_seconds(config: ServeConfig) -> float:
    return config.drain_seconds + 10.0
