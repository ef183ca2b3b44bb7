"""The Serve application: one deployment of groups, one of ingresses.

Only says what is deployed with which resources; what runs inside is in `group_replica.py` and
`ingress_replica.py`.
"""

from ray import serve
from ray.serve import Application

from blockyard.cluster.config import ServeConfig
from blockyard.cluster.group_replica import GroupReplica
from blockyard.cluster.ingress_replica import IngressReplica

__all__ = ["APP_NAME", "GROUP_DEPLOYMENT", "INGRESS_DEPLOYMENT", "build_app"]

APP_NAME = "blockyard"
GROUP_DEPLOYMENT = "groups"
INGRESS_DEPLOYMENT = "ingress"

_SMALL_CPU = 0.1
"""Engines and ingresses wait for others most of the time."""
_HEALTH_PERIOD_SECONDS = 2.0
_HEALTH_TIMEOUT_SECONDS = 30.0
_MAX_ONGOING_REQUESTS = 100_000
"""Serve's default of 5 would cap a replica; our own queue limits are the ones that count."""


def build_app(config: ServeConfig, uses_gpu: bool) -> Application:
    """Describe the deployment of one model."""
    grace_seconds = config.drain_seconds + 10.0
    rank_bundle = {"CPU": 1.0, "GPU": 1.0} if uses_gpu else {"CPU": 1.0}
    groups = serve.deployment(
        name=GROUP_DEPLOYMENT,
        num_replicas=config.num_groups,
        ray_actor_options={"num_cpus": _SMALL_CPU},
        placement_group_bundles=[{"CPU": _SMALL_CPU}, *([rank_bundle] * config.num_ranks)],
        placement_group_strategy="PACK",
        max_ongoing_requests=_MAX_ONGOING_REQUESTS,
        health_check_period_s=_HEALTH_PERIOD_SECONDS,
        health_check_timeout_s=_HEALTH_TIMEOUT_SECONDS,
        graceful_shutdown_timeout_s=grace_seconds,
    )(GroupReplica)
    ingress = serve.deployment(
        name=INGRESS_DEPLOYMENT,
        num_replicas=1,
        ray_actor_options={"num_cpus": _SMALL_CPU},
        max_ongoing_requests=_MAX_ONGOING_REQUESTS,
        health_check_period_s=_HEALTH_PERIOD_SECONDS,
        health_check_timeout_s=_HEALTH_TIMEOUT_SECONDS,
        graceful_shutdown_timeout_s=grace_seconds,
    )(IngressReplica)
    return ingress.bind(config, groups.bind(config, uses_gpu))
