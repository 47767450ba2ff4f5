"""The memory estimate against programs compiled for TPU, and what follows from it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tpuctl.errors import RecipeError
from tpuctl.plan.budget import POLICIES, Workload, estimate

LLAMA = ["model.preset=llama3-8b", "train.sequence_length=8192"]


def workload(plan) -> Workload:
    return Workload(model=plan.model, mesh=plan.mesh, train=plan.train, hbm_bytes=plan.budget.hbm_bytes)


@pytest.mark.parametrize(
    ("overrides", "state_gib", "rest_gib"),
    [
        # Arguments and temporaries that XLA reported for tpuctl's own step, compiled for v6e 4x4.
        ([*LLAMA, "slice.topology=4x4", "train.global_batch=16", "train.remat=full"], 5.61, 7.30),
        (
            [*LLAMA, "slice.topology=4x4", "train.global_batch=16", "train.remat=none", "model.num_layers=4"],
            1.34,
            12.90,
        ),
        # The same of another trainer's step (MaxText 0.2.5, full remat; its 70B row with collective matmuls).
        ([*LLAMA, "slice.topology=4x4", "train.global_batch=32", "train.remat=full"], 5.61, 11.10),
        (
            [*LLAMA, "model.preset=llama3-70b", "slice.topology=16x16", "train.global_batch=256", "train.remat=full"],
            3.09,
            17.76,
        ),
    ],
)
def test_estimate_of_a_compiled_step_has_its_state_exactly_and_the_rest_within_a_fifth(
    make_plan, overrides, state_gib, rest_gib
) -> None:
    budget = make_plan(*overrides).budget
    assert budget.state_bytes / 2**30 == pytest.approx(state_gib, abs=0.02)
    rest = (budget.needed_bytes - budget.state_bytes) / 2**30
    assert rest == pytest.approx(rest_gib, rel=0.2)


def test_estimate_falls_with_every_policy_and_every_cut(make_plan) -> None:
    work = workload(make_plan(*LLAMA, "slice.topology=4x4", "train.global_batch=32", "train.remat=full"))
    sizes = [estimate(work, policy).needed_bytes for policy in POLICIES]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
    halved = replace(work, train=replace(work.train, microbatches=2))
    assert estimate(halved, "full").activation_bytes < estimate(work, "full").activation_bytes
    split = replace(work, mesh=replace(work.mesh, fsdp=8, tensor=2), train=replace(work.train, global_batch=16))
    assert estimate(split, "full").activation_bytes < estimate(work, "full").activation_bytes
    assert estimate(split, "full").state_bytes == estimate(work, "full").state_bytes


@pytest.mark.parametrize(
    ("overrides", "remat"),
    [
        ([], "none"),
        ([*LLAMA, "slice.topology=4x4", "train.global_batch=32"], "attention"),
        ([*LLAMA, "slice.topology=4x4", "train.global_batch=64"], "full"),
        ([*LLAMA, "slice.topology=16x16", "train.global_batch=256"], "attention"),
        (["train.remat=dots"], "dots"),
    ],
)
def test_resolve_chooses_the_cheapest_policy_that_fits(make_plan, overrides, remat) -> None:
    assert make_plan(*overrides).train.remat == remat


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (["model.preset=llama3-70b", "slice.topology=4x4", "train.global_batch=16"], ["a larger slice.topology"]),
        (
            [*LLAMA, "train.remat=none", "slice.topology=4x4", "train.global_batch=64"],
            ['remat = "full"', "microbatches"],
        ),
    ],
)
def test_resolve_of_a_plan_that_does_not_fit_says_need_have_and_what_to_turn(make_plan, overrides, advice) -> None:
    with pytest.raises(RecipeError) as caught:
        make_plan(*overrides)
    assert "does not fit" in caught.value.message
    assert "of 31.24 GiB" in caught.value.message
    assert [part for part in advice if part not in (caught.value.hint or "")] == []


def test_hint_of_a_plan_that_does_not_fit_names_only_microbatches_a_recipe_may_have(make_plan) -> None:
    with pytest.raises(RecipeError) as caught:
        make_plan(*LLAMA, "slice.topology=2x2", f"train.global_batch={4 * 3**12}", "train.remat=full")
    proposed = re.search(r"train\.microbatches = (\d+)", caught.value.hint or "")
    assert proposed is not None
    assert int(proposed[1]) == 3**10  # 65,536 is the most a key takes
    with pytest.raises(RecipeError, match="does not fit"):  # and nothing else: the number itself is taken
        make_plan(*LLAMA, "slice.topology=2x2", f"train.global_batch={4 * 3**12}", f"train.microbatches={proposed[1]}")
