"""Rules over several keys, and the defaults that depend on other keys."""

from __future__ import annotations

import pytest

from tpuctl.errors import RecipeError
from tpuctl.plan.schema import plan_dumps, plan_loads


def refusal(make_plan, *overrides, environ=None) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        make_plan(*overrides, environ=environ)
    return caught.value


def test_resolve_is_pure_and_its_plan_survives_json(make_plan) -> None:
    plan = make_plan()
    assert plan == make_plan()
    assert plan_loads(plan_dumps(plan)) == plan


def test_resolve_points_at_the_line_of_the_key_that_breaks_a_rule(tmp_path) -> None:
    from tpuctl.plan.resolve import resolve
    from tpuctl.recipe.load import load_recipe

    path = tmp_path / "x.toml"
    path.write_text(
        'kind = "train"\n[slice]\naccelerator = "v6e"\ntopology = "2x3"\n[model]\npreset = "tiny-1m"\n'
        '[data]\nuri = "d"\n[train]\nsteps = 5\nglobal_batch = 4\n[optim]\nwarmup_steps = 6\n'
    )
    with pytest.raises(RecipeError) as caught:
        resolve(load_recipe(path), environ={}, cwd="/")
    assert f"{path}:4: slice.topology" in caught.value.message
    assert f"{path}:13: optim.warmup_steps" in caught.value.message


@pytest.mark.parametrize(
    ("overrides", "key", "message", "hint"),
    [
        (["slice.topology=2x3"], "slice.topology", "2x3", "4x4"),
        (["slice.accelerator=tpu-v5-8"], "slice.accelerator", "tpu-v5-8", "v5p-8 or v5litepod-8"),
        (["slice.accelerator=v5p-512", "slice.topology=none"], "slice.accelerator", "several", "4x4x16"),
        (["slice.accelerator=v6e", "slice.topology=none"], "slice.accelerator", "needs a topology", "2x2"),
        (["slice.chips_per_host=8"], "slice.chips_per_host", "chips_per_host = 8", "1 host × 4"),
        (["optim.warmup_steps=101"], "optim.warmup_steps", "101 steps of warm-up", "at most 100"),
        (
            ["optim.schedule=wsd", "optim.decay_steps=95"],
            "optim.decay_steps",
            "does not fit into the 90",
            "at most 90",
        ),
        (["optim.schedule=constant", "optim.decay_steps=9"], "optim.decay_steps", "no decay", ""),
        (["train.eval_every=10", "data.eval_uri=none"], "train.eval_every", "no held-out text", "data.eval_uri"),
        (["expect.max_eval_loss=3", "data.eval_uri=none"], "expect.max_eval_loss", "no held-out", "data.eval_uri"),
        (["expect.max_bits_per_byte=3", "data.eval_uri=none"], "expect.max_bits_per_byte", "no held-out", ""),
        (["data.eval_uri=data/train/"], "data.eval_uri", "is the training text", ""),
    ],
)
def test_resolve_of_keys_that_contradict_each_other_names_one(make_plan, overrides, key, message, hint) -> None:
    error = refusal(make_plan, *overrides)
    assert error.where is not None
    assert error.where.key == key
    assert message in error.message
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("overrides", "warmup", "decay"),
    [
        ([], 10, 90),
        (["train.steps=50000"], 1000, 49_000),
        (["optim.schedule=linear", "optim.warmup_steps=0"], 0, 100),
        (["optim.schedule=wsd"], 10, 20),
        (["optim.schedule=wsd", "train.steps=1"], 0, 1),
        (["optim.schedule=constant"], 10, 0),
        (["optim.decay_steps=30"], 10, 30),
    ],
)
def test_resolve_chooses_warm_up_and_decay_by_schedule(make_plan, overrides, warmup, decay) -> None:
    optim = make_plan(*overrides).optim
    assert (optim.warmup_steps, optim.decay_steps) == (warmup, decay)


def test_resolve_reads_clip_norm_0_as_no_clipping(make_plan) -> None:
    assert make_plan("optim.clip_norm=0").optim.clip_norm is None
    assert make_plan().optim.clip_norm == 1.0


@pytest.mark.parametrize(
    ("override", "note"),
    [
        ("train.eval_every=1000", "evaluated once, after step 100"),
        ("checkpoint.every=1000", "saved once, after step 100"),
        ("optim.decay_steps=1000", "ends before the decay"),
        ("slice.topology=2x4", "chips_per_host = 4"),
        ("slice.accelerator=v6e-4", ""),
    ],
)
def test_resolve_notes_what_will_not_happen_or_was_chosen(make_plan, override, note) -> None:
    notes = make_plan(override, "checkpoint.every=50" if not override.startswith("checkpoint") else override).notes
    assert any(note in text for text in notes) if note else notes == ()


def test_resolve_of_a_name_in_cores_says_the_chips(make_plan) -> None:
    plan = make_plan("slice.accelerator=v4-16", "slice.topology=none")
    assert (plan.slice.topology, plan.slice.hosts, plan.slice.chips) == ("2x2x2", 2, 8)
    assert any("8 chips" in note for note in plan.notes)


def test_resolve_of_two_slices_counts_both(make_plan) -> None:
    plan = make_plan("slice.slices=2", "slice.accelerator=v5p", "slice.topology=2x2x2", "train.global_batch=16")
    assert (plan.slice.hosts, plan.slice.total_hosts, plan.slice.total_devices) == (2, 4, 16)
    assert (plan.mesh.slice, plan.mesh.fsdp) == (2, 8)


def test_resolve_with_bad_text_says_nothing_of_the_held_out_text_that_follows_from_it(make_plan) -> None:
    with pytest.raises(RecipeError, match="unknown built-in text") as caught:
        make_plan("data.uri=builtin:x", "data.eval_uri=none", "train.eval_every=1", "expect.max_eval_loss=3")
    assert "problems" not in caught.value.message
