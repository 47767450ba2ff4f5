"""The train entrypoint: the driver, which prepares and watches a run. What each host does is in ``train_host``.

The driver holds the run directory's lease, makes the text ready, has Ray Train reserve the slices, and turns
whatever happens into one reason and an exit code.
"""

from __future__ import annotations

from tpuctl import __version__
from tpuctl.entrypoints.attempt import HeldRun, Identity
from tpuctl.entrypoints.corpus import PYTHON_STDLIB
from tpuctl.entrypoints.driver import begin, bounded
from tpuctl.entrypoints.emit import emit
from tpuctl.entrypoints.prepare import Text, prepare
from tpuctl.entrypoints.train_host import HostConfig, HostResult, train_host
from tpuctl.entrypoints.trainer import HostWork, run_on_hosts
from tpuctl.entrypoints.weights import starting_weights
from tpuctl.errors import ExpectationError
from tpuctl.plan.schema import TrainingPlan
from tpuctl.plan.train_schema import ExpectPlan
from tpuctl.train.baselines import baselines


def main(plan: TrainingPlan) -> int:
    """Run one attempt of a training run; the job's exit code.

    Raises:
        TpuctlError: The run failed for a reason we can name.
    """
    identity = begin(plan)
    with HeldRun(plan, identity, version=__version__) as run:
        with bounded(plan, identity):
            text = prepare(plan)
            config = HostConfig(plan=plan, text=text, weights=starting_weights(plan), job=identity.submission_id)
            result = _train(config, identity)
        run.ended("stopped" if result.stopped else "succeeded")
        if not result.stopped:
            _tell_baselines(plan, text)
        check_expectations(plan.expect, result)
    return 0


def check_expectations(expect: ExpectPlan, result: HostResult) -> None:
    """Hold the result against the recipe's gates.

    Raises:
        ExpectationError: A gate was missed, or there is no held-out loss to hold against it.
    """
    if result.stopped:
        return
    gates = [
        ("max_eval_loss", expect.max_eval_loss, result.eval_loss),
        ("max_bits_per_byte", expect.max_bits_per_byte, result.bits_per_byte),
    ]
    missed = [
        f"{name} = {limit:g}, got {'no held-out loss' if value is None else format(value, '.4f')}"
        for name, limit, value in gates
        if limit is not None and not (value is not None and value <= limit)
    ]
    if missed:
        raise ExpectationError("[expect] missed: " + "; ".join(missed))


def _tell_baselines(plan: TrainingPlan, text: Text) -> None:
    """What gzip, xz and a trigram model make of the same text.

    Only of the built-in one, since a dataset of the user's own may be any size, and only where the run reads all of it.
    """
    if text.held_out is None or plan.data.uri != PYTHON_STDLIB or plan.train.eval_batches:
        return
    found = baselines(text.train.corpus, text.held_out.corpus, tokenizer=text.tokenizer())
    emit("baselines", rows=[{"name": row.name, "bits_per_byte": row.bits_per_byte} for row in found])


def _train(config: HostConfig, identity: Identity) -> HostResult:
    work = HostWork(run=train_host, config=config.to_ray())
    value = run_on_hosts(config.plan, work, attempt=identity.attempt)
    assert isinstance(value, HostResult), "train_host returns one"
    return value
