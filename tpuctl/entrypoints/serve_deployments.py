"""The models of an endpoint as Ray Serve keeps them: an application each, so that none can take down another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.schema import ApplicationStatus

from tpuctl.entrypoints.prefix_router import PrefixRouter
from tpuctl.entrypoints.replica import Replica
from tpuctl.plan.schema import ServingPlan, plan_to_json

_HEALTH_SECONDS = 1.0
# More replicas when those there are run this share of what their engines hold.
_BUSY_SHARE = 0.7
_UPSCALE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """Why a model can't answer, in Ray Serve's words; ``for_good`` when it starts no more replicas."""

    reason: str
    for_good: bool


class Deployments:
    """One application of Ray Serve for each plan, called after the job."""

    def __init__(self, plans: Sequence[ServingPlan], *, job: str, board: Any) -> None:
        """Starts nothing. Replicas write how they are on ``board``."""
        self._board = board
        # With their numbers, as two names may be one once they are words of Ray Serve's.
        apps = [f"{job}--{number}-{_word(plan.endpoint.name)}" for number, plan in enumerate(plans, start=1)]
        self._plans = dict(zip([job] if len(plans) == 1 else apps, plans, strict=True))

    def start(self) -> list[Any]:
        """Ray Serve's handles of the models, in the order of the plans; no replica need be there yet."""
        targets = [
            serve.RunTarget(target=_deployment(plan, self._board), name=app, route_prefix=None)
            for app, plan in self._plans.items()
        ]
        return list(serve.run_many(targets, wait_for_applications_running=False))

    def delete(self) -> None:
        """Let answers under way end, and the replicas with them: all at once."""
        for app in self._plans:
            serve.delete(app, _blocking=False)
        for app in self._plans:
            serve.delete(app)

    def missing(self) -> dict[str, Missing]:
        """The models that can't answer just now, by their names. One that needs only to be asked is none of them."""
        apps = serve.status().applications
        return {
            plan.endpoint.name: _missing(apps[app])
            for app, plan in self._plans.items()
            if apps[app].status is not ApplicationStatus.RUNNING
        }


def _deployment(plan: ServingPlan, board: Any) -> Any:
    endpoint = plan.endpoint
    scaling: dict[str, Any] = {"num_replicas": endpoint.max_replicas}
    if endpoint.min_replicas < endpoint.max_replicas:
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=endpoint.min_replicas,
                initial_replicas=max(1, endpoint.min_replicas),
                max_replicas=endpoint.max_replicas,
                target_ongoing_requests=max(1.0, _BUSY_SHARE * plan.engine.max_sequences),
                upscale_delay_s=_UPSCALE_SECONDS,
                downscale_delay_s=endpoint.idle_seconds,
            )
        }
    deployment: Any = serve.deployment(
        Replica,
        name=_word(endpoint.name),
        ray_actor_options={"num_cpus": 1},
        max_ongoing_requests=plan.engine.max_sequences,
        max_queued_requests=endpoint.max_waiting,
        health_check_period_s=_HEALTH_SECONDS,
        health_check_timeout_s=30.0,
        graceful_shutdown_timeout_s=endpoint.drain_seconds,
        max_constructor_retry_count=plan.job.max_failures + 1,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),  # type: ignore[arg-type]
        **scaling,
    )
    return deployment.bind(plan_to_json(plan), board)


def _word(name: str) -> str:
    """A model's name as Ray Serve takes one."""
    return name.replace("/", "--")


def _missing(app: Any) -> Missing:
    told = "; ".join(deployment.message for deployment in app.deployments.values()) or str(app.message)
    return Missing(reason=told, for_good=app.status is ApplicationStatus.DEPLOY_FAILED)
