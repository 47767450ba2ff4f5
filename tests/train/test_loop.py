from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.fakes.toy_task import Run, toy_plan
from tests.fakes.toy_training import Toy
from tpuctl.errors import CheckpointError, DataError
from tpuctl.train import loop
from tpuctl.train.stopping import NonFiniteLoss, StopReason


def final_state(run: Run, step: int) -> Any:
    return run.task.checkpoints.restore(step, run.task.program.abstract_state)


def assert_equal_states(left: Any, right: Any) -> None:
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        if jax.numpy.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_run_to_the_end_tells_steps_saves_and_the_result(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path, train__eval_every=6))

    result = loop.run(run.task)

    assert result.step == 12
    assert result.stopped is None
    assert run.told("host", "simulated") == [True]
    assert run.told("phase", "phase") == ["compiled", "data", "training"]
    assert run.told("step") == list(range(1, 13))
    assert run.told("eval") == [6, 12]
    assert [(item["step"], item["kind"]) for item in run.events if item["event"] == "checkpoint"] == [
        (4, "periodic"),
        (8, "periodic"),
        (12, "final"),
    ]
    done = run.events[-1]
    assert done["event"] == "done"
    assert done["eval_loss"] == run.told("eval", "loss")[-1] == result.evaluation.loss  # type: ignore[union-attr]
    assert done["checkpoints"] == [f"{tmp_path}/checkpoints/{step}" for step in (4, 8, 12)]
    losses = run.losses()
    assert losses[12] < losses[1]


def test_run_step_event_has_every_figure(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path))
    loop.run(run.task)

    last = [item for item in run.events if item["event"] == "step"][-1]

    assert last["steps"] == 12
    assert last["tokens"] == 8 * 16
    assert last["eta_seconds"] == 0
    assert 0 <= last["data_stall"] <= 1
    assert last["tokens_per_second"] == pytest.approx(last["tokens"] / last["step_seconds"])


def test_run_logs_every_nth_step_and_the_last(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path, train__log_every=5))

    loop.run(run.task)

    assert run.told("step") == [5, 10, 12]


def test_run_of_one_step_leaves_one_complete_checkpoint(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path, train__steps=1, checkpoint__every=0))

    loop.run(run.task)

    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["1"]
    assert (tmp_path / "checkpoints/1/commit_success.txt").exists()


def test_run_keeps_as_many_checkpoints_as_planned(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path, checkpoint__every=2, checkpoint__keep=2))

    result = loop.run(run.task)

    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "12"]
    assert result.checkpoints == tuple(f"{tmp_path}/checkpoints/{step}" for step in (10, 12))


def test_evaluation_is_the_mean_over_held_out_tokens(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path, train__steps=4))
    loop.run(run.task)
    held_out = next(item for item in run.events if item["event"] == "eval")

    state = final_state(Run(run.task.plan), 4)
    sums = [
        jax.device_get(run.task.program.eval_step(state.params, run.task.program.assemble(batch, False)))
        for batch, _ in zip(run.task.feed.evaluate(), range(3), strict=False)
    ]
    nats = sum(float(item["nats"]) for item in sums)
    tokens = sum(int(item["tokens"]) for item in sums)

    assert held_out["tokens"] == tokens == 3 * 8 * 16
    assert held_out["loss"] == pytest.approx(nats / tokens, rel=1e-6)
    assert held_out["bits_per_byte"] == pytest.approx(nats / math.log(2) / (2 * tokens), rel=1e-6)


def test_evaluation_takes_no_more_batches_than_planned(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path, train__steps=2, train__eval_batches=2))

    loop.run(run.task)

    assert run.told("eval", "tokens") == [2 * 8 * 16]


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("killed_after", [4, 8])
def test_resume_gives_the_unbroken_run_bit_for_bit(devices: int, killed_after: int, tmp_path: Path) -> None:
    on = jax.devices()[:devices]
    unbroken = Run(toy_plan(tmp_path / "unbroken"), devices=on)
    loop.run(unbroken.task)
    # A run that ends at the step of its last checkpoint leaves what a killed one leaves.
    killed = toy_plan(tmp_path / "killed", train__steps=killed_after)
    loop.run(Run(killed, devices=on).task)

    resumed = Run(toy_plan(tmp_path / "killed"), devices=on)
    loop.run(resumed.task)

    assert resumed.told("resume") == [killed_after]
    assert resumed.told("resume", "path") == [f"{tmp_path}/killed/checkpoints/{killed_after}"]
    expected = {step: loss for step, loss in unbroken.losses().items() if step > killed_after}
    assert resumed.losses() == expected
    assert_equal_states(
        final_state(Run(unbroken.task.plan, devices=on), 12), final_state(Run(resumed.task.plan, devices=on), 12)
    )


def test_resume_of_a_finished_run_trains_no_further(tmp_path: Path) -> None:
    first = Run(toy_plan(tmp_path))
    loop.run(first.task)
    again = Run(toy_plan(tmp_path))

    result = loop.run(again.task)

    assert result.step == 12
    assert again.told("step") == []
    assert "compiled" not in again.told("phase", "phase")
    assert again.events[-1]["event"] == "done"
    assert again.events[-1]["eval_loss"] == first.events[-1]["eval_loss"]


def test_resume_with_more_steps_goes_on_to_the_new_end(tmp_path: Path) -> None:
    loop.run(Run(toy_plan(tmp_path)).task)
    longer = Run(toy_plan(tmp_path, train__steps=16))

    assert loop.run(longer.task).step == 16
    assert longer.told("step") == [13, 14, 15, 16]


def test_resume_never_of_another_job_is_refused_and_told(tmp_path: Path) -> None:
    loop.run(Run(toy_plan(tmp_path)).task)
    fresh = Run(toy_plan(tmp_path, checkpoint__resume="never"), job="job-2")

    with pytest.raises(CheckpointError, match="up to step 12"):
        loop.run(fresh.task)

    assert fresh.events[-1]["event"] == "failed"


def test_stop_request_saves_and_ends_between_steps(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path, train__steps=100))
    run.asked_to_stop_at = 5

    result = loop.run(run.task)

    assert result.stopped is StopReason.REQUESTED
    assert 5 < result.step < 10
    stopped = run.events[-1]
    assert (stopped["event"], stopped["step"], stopped["reason"]) == ("stopped", result.step, "stop requested")
    assert result.checkpoints[-1] == stopped["path"] == f"{tmp_path}/checkpoints/{result.step}"
    assert run.told("checkpoint", "kind")[-1] == "stop"
    assert run.told("eval") == []


def test_stopped_run_goes_on_as_if_unbroken(tmp_path: Path) -> None:
    unbroken = Run(toy_plan(tmp_path / "unbroken", train__steps=20))
    loop.run(unbroken.task)
    stopped = Run(toy_plan(tmp_path / "stopped", train__steps=20))
    stopped.asked_to_stop_at = 5
    loop.run(stopped.task)

    resumed = Run(toy_plan(tmp_path / "stopped", train__steps=20))
    loop.run(resumed.task)

    assert {**stopped.losses(), **resumed.losses()} == unbroken.losses()
    assert not set(stopped.losses()) & set(resumed.losses())


def test_stop_request_with_the_last_step_is_a_finished_run(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path, train__steps=4))
    run.asked_to_stop_at = 2

    result = loop.run(run.task)

    assert (result.step, result.stopped) == (4, None)
    assert run.events[-1]["event"] == "done"


@pytest.mark.parametrize("explode_at", [6, 8])
def test_non_finite_loss_ends_the_run_and_keeps_the_last_good_checkpoint(explode_at: int, tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path), toy=Toy(explode_at=explode_at))

    with pytest.raises(NonFiniteLoss, match=rf"step {explode_at}: loss inf.*the last checkpoint is step 4") as failure:
        loop.run(run.task)

    assert failure.value.step == explode_at
    assert run.told("step") == list(range(1, explode_at))
    assert run.events[-1]["event"] == "failed"
    assert f"step {explode_at}" in run.events[-1]["reason"]
    assert run.task.checkpoints.steps() == [4]


@pytest.mark.parametrize(("rule", "steps"), [("drop", 5), ("pad", 7)])
def test_finite_data_ends_by_its_rule_with_a_complete_checkpoint(rule: str, steps: int, tmp_path: Path) -> None:
    plan = toy_plan(tmp_path, data__epochs=1, data__ragged=rule, train__steps=100)
    run = Run(plan, length=[5, 7, 5, 5, 6, 6, 6, 6])

    result = loop.run(run.task)

    assert (result.step, result.stopped) == (steps, None)
    assert run.told("step") == list(range(1, steps + 1))
    assert run.events[-1]["event"] == "done"
    assert result.checkpoints[-1].endswith(f"/{steps}")
    assert run.told("checkpoint", "kind")[-1] == "final"


def test_finite_data_with_ragged_end_is_an_error_where_asked_for(tmp_path: Path) -> None:
    plan = toy_plan(tmp_path, data__epochs=1, data__ragged="raise", train__steps=100)
    run = Run(plan, length=[5, 7, 5, 5, 6, 6, 6, 6])

    with pytest.raises(DataError, match="5 of 8 rows"):
        loop.run(run.task)


def test_finite_data_resumes_to_the_same_end(tmp_path: Path) -> None:
    lengths = [5, 7, 5, 5, 6, 6, 6, 6]
    changes: dict[str, Any] = {"data__epochs": 1, "data__ragged": "pad"}
    unbroken = Run(toy_plan(tmp_path / "unbroken", **changes, train__steps=100), length=lengths)
    loop.run(unbroken.task)
    loop.run(Run(toy_plan(tmp_path / "killed", **changes, train__steps=4), length=lengths).task)

    resumed = Run(toy_plan(tmp_path / "killed", **changes, train__steps=100), length=lengths)
    loop.run(resumed.task)

    assert resumed.losses() == {step: loss for step, loss in unbroken.losses().items() if step > 4}


def test_endless_plan_never_trains_on_padding_alone(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path), length=[2] * 8)

    with pytest.raises(DataError, match="step 3: no host had a token"):
        loop.run(run.task)


def test_failed_background_save_ends_the_run_at_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import orbax.checkpoint._src.path.atomicity as atomicity

    async def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomicity, "on_commit_callback", full_disk)
    run = Run(toy_plan(tmp_path, train__steps=10_000))

    with pytest.raises(CheckpointError, match="step 4 failed in the background"):
        loop.run(run.task)

    assert max(run.told("step")) < 1000


def test_run_without_held_out_text_ends_without_a_held_out_loss(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path, data__eval_uri=None, train__eval_every=2, train__steps=4))

    assert loop.run(run.task).evaluation is None
    assert run.events[-1]["eval_loss"] is None


def test_learning_rate_and_count_go_on_after_a_resume(tmp_path: Path) -> None:
    loop.run(Run(toy_plan(tmp_path, train__steps=4)).task)
    loop.run(Run(toy_plan(tmp_path)).task)

    before = final_state(Run(toy_plan(tmp_path)), 4)
    after = final_state(Run(toy_plan(tmp_path)), 12)

    assert int(after.step) == int(after.opt_state[0].count) == 12
    assert not np.array_equal(np.asarray(before.params["head"]), np.asarray(after.params["head"]))


def test_data_stall_is_the_share_of_time_spent_waiting_for_the_feed(tmp_path: Path) -> None:
    run = Run(toy_plan(tmp_path, train__log_every=12))
    seconds = iter(range(1_000_000))
    slow = dataclasses.replace(run.task, clock=lambda: float(next(seconds)))

    loop.run(slow)

    stall = run.told("step", "data_stall")[-1]
    assert 0.3 < stall <= 1.0
