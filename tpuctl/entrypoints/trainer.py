"""Ray Train, set up for one plan: a whole slice, a bounded start, and no process that the job doesn't need.

On a two-core machine most of a start is Python importing Ray in one helper process after another, so each one
that only duplicates what the job does anyway is left out; ``docs/design/startup.md`` has the figures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2.api.callback import RayTrainCallback
from ray.train.v2.api.config import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.v2.api.exceptions import TrainingFailedError
from ray.train.v2.api.result import Result
from ray.train.v2.jax import JaxTrainer

from tpuctl.entrypoints.failures import ReasonedFailurePolicy, explain
from tpuctl.entrypoints.gang import GangConfig
from tpuctl.entrypoints.reservation import host_resources
from tpuctl.entrypoints.seats import is_simulated
from tpuctl.plan.schema import UniformPlan
from tpuctl.storage import is_gcs, join
from tpuctl.storage.arrow import arrow_filesystem

_ENVIRONMENT = {
    # Prints are ours and reach the log once; Ray's patch would write them a second time.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # The working directory is the uploaded package, where tpuctl itself is imported from.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Metrics go to the run directory; Ray's would need a Prometheus that nobody runs here.
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HostWork:
    """What every host does: ``run(config)``. ``joins``: in a process that is part of the gang's JAX cluster."""

    run: Callable[[dict[str, Any]], Any]
    config: Mapping[str, Any]
    joins: bool = True


def run_on_hosts(plan: UniformPlan, work: HostWork, *, attempt: int) -> Any:
    """Do the work on every host of the plan's slices, with restarts as planned; the first host's result.

    Raises:
        TpuctlError: why it failed.
    """
    simulated = is_simulated()
    storage = join(plan.run.directory, "ray", str(attempt))
    trainer = _make_trainer(plan, work, storage=storage, simulated=simulated)
    try:
        return cast(Result, trainer.fit()).return_value
    except TrainingFailedError as error:
        raise explain(error, start_timeout_seconds=plan.job.start_timeout_seconds) from error


def _make_trainer(plan: UniformPlan, work: HostWork, *, storage: str, simulated: bool) -> SliceTrainer:
    """The trainer that does the work, or raises within the plan's time."""
    os.environ.update(_ENVIRONMENT)
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(plan.job.start_timeout_seconds)
    if simulated:
        # Nobody preempts a simulated slice, and the watcher is one more process.
        os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"
    reserved = plan.slice
    filesystem, path = arrow_filesystem(storage)
    trainer = SliceTrainer(
        work.run,
        train_loop_config=dict(work.config),
        jax_config=GangConfig(
            use_tpu=True,
            slices=reserved.slices,
            hosts=reserved.hosts,
            joins=work.joins,
            join_timeout_seconds=plan.job.start_timeout_seconds,
        ),
        scaling_config=ScalingConfig(
            use_tpu=True,
            topology=reserved.topology,
            accelerator_type=reserved.accelerator_type,
            num_workers=reserved.total_hosts,
            resources_per_worker=host_resources(reserved),
        ),
        run_config=RunConfig(
            name="ray-train",
            storage_path=path,
            storage_filesystem=filesystem if is_gcs(storage) else None,
            failure_config=FailureConfig(max_failures=plan.job.max_failures, controller_failure_limit=0),
            logging_config=LoggingConfig(log_level="WARNING"),
        ),
    )
    trainer.simulated = simulated
    return trainer


class SliceTrainer(JaxTrainer):
    """A ``JaxTrainer`` with our failure policy, and without the helper processes that our jobs have no use for.

    Ray's detached cleaner frees the placement groups of a controller that died; ours end with the job, and the job
    with us. Its dataset manager serves datasets given to the trainer; ours are read by ``ray_feed``. And a simulated
    cluster has no autoscaler to be asked for nodes.
    """

    simulated = False

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        failure_config, scaling_config = self.run_config.failure_config, self.scaling_config
        assert isinstance(failure_config, FailureConfig), "make_trainer sets one"
        assert isinstance(scaling_config, ScalingConfig), "make_trainer sets one"
        arguments["failure_policy"] = ReasonedFailurePolicy(failure_config)
        if self.simulated:
            arguments["scaling_policy"] = UnaskingScalingPolicy(scaling_config)
        return super()._initialize_and_run_controller(**arguments)

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        spared = (PlacementGroupCleanerCallback, DatasetsCallback)
        return [item for item in super()._create_default_callbacks() if not isinstance(item, spared)]


class UnaskingScalingPolicy(FixedScalingPolicy):
    """A fixed number of workers, and nobody asked for nodes to put them on."""

    def after_controller_start(self, train_run_context: TrainRunContext) -> None:
        """Would start the autoscaling coordinator."""

    def _maybe_send_resource_request(self) -> None:
        """Would ask it for nodes."""

    def _cancel_resource_request(self) -> None:
        """Would take that back."""
