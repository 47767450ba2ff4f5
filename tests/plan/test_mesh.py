"""The mesh: chosen so that everything divides, refused with what does not."""

from __future__ import annotations

import math

import pytest

from tpuctl.errors import RecipeError

LARGE = ["model.preset=llama3-8b", "data.tokenizer=bytes"]
EXPERTS = ["model.preset=qwen3-30b-a3b", "data.tokenizer=bytes"]


@pytest.mark.parametrize(
    ("overrides", "mesh"),
    [
        ([], (1, 1, 4, 1)),
        (["mesh.tensor=2"], (1, 1, 2, 2)),
        (["mesh.tensor=4"], (1, 1, 1, 4)),  # more devices than key heads
        (["mesh.data=2"], (1, 2, 2, 1)),
        (["mesh.data=4", "mesh.fsdp=1"], (1, 4, 1, 1)),
        (["mesh.fsdp=2"], (1, 2, 2, 1)),
        (["slice.topology=1x1"], (1, 1, 1, 1)),
        (["train.global_batch=2"], (1, 1, 2, 2)),
        (["train.global_batch=8", "train.microbatches=2"], (1, 1, 4, 1)),
        (["slice.slices=2"], (2, 1, 4, 1)),
        (["slice.slices=2", "mesh.slice=2"], (2, 1, 4, 1)),
        ([*LARGE, "slice.topology=4x4", "train.global_batch=16"], (1, 1, 16, 1)),
        ([*EXPERTS, "slice.topology=16x16", "train.global_batch=256", "mesh.tensor=8"], (1, 1, 32, 8)),
        ([*LARGE, "slice.topology=16x16", "train.global_batch=256", "mesh.tensor=4"], (1, 1, 64, 4)),
    ],
)
def test_plan_mesh_makes_every_device_part_of_it(make_plan, overrides, mesh) -> None:
    plan = make_plan(*overrides)
    axes = (plan.mesh.slice, plan.mesh.data, plan.mesh.fsdp, plan.mesh.tensor)
    assert (*axes, plan.mesh.expert) == (*mesh, 1)
    assert math.prod(axes) == plan.slice.total_devices
    assert plan.train.global_batch % (plan.mesh.batch_shards * plan.train.microbatches) == 0


def test_plan_mesh_deals_experts_out_where_it_is_told(make_plan) -> None:
    plan = make_plan(*EXPERTS, "slice.topology=8x8", "train.global_batch=64", "mesh.expert=16", "mesh.tensor=2")
    assert (plan.mesh.fsdp, plan.mesh.expert, plan.mesh.tensor) == (2, 16, 2)
    assert plan.mesh.batch_shards == 32
    assert make_plan(*EXPERTS, "slice.topology=8x8", "train.global_batch=64", "mesh.expert=64").mesh.expert == 64


def test_plan_mesh_that_splits_by_tensor_unasked_says_why(make_plan) -> None:
    assert any("mesh.tensor = 2" in n and "2 sequences" in n for n in make_plan("train.global_batch=2").notes)
    assert make_plan("train.global_batch=2", "mesh.tensor=2").notes == make_plan("checkpoint.every=500").notes


@pytest.mark.parametrize(
    ("overrides", "key", "message", "hint"),
    [
        (
            ["train.global_batch=7", "mesh.tensor=1"],
            "train.global_batch",
            "7 sequences do not divide into 4 batch shards",
            "4 or 8",
        ),
        (["train.global_batch=1", "mesh.tensor=1"], "train.global_batch", "1 sequences", "use 4"),
        (["train.global_batch=12", "train.microbatches=2", "mesh.fsdp=4"], "train.global_batch", "2 microbatches", "8"),
        (["mesh.slice=2"], "mesh.slice", "number of slices, 1", "1"),
        (["mesh.fsdp=3"], "mesh.fsdp", "fsdp 3 does not make the 4 devices", "product"),
        (["mesh.fsdp=4", "mesh.tensor=2"], "mesh.fsdp", "fsdp 4 × tensor 2", "product"),
        (["mesh.tensor=4", "model.num_heads=6", "model.head_dim=64"], "mesh.tensor", "num_heads 6", "divisor of 6"),
        (
            ["mesh.tensor=4", "model.num_heads=12", "model.num_kv_heads=6", "model.head_dim=64"],
            "mesh.tensor",
            "neither divides num_kv_heads 6 nor is a multiple",
            "divisor or a multiple of 6",
        ),
        (["mesh.tensor=2", "train.sequence_length=129"], "mesh.tensor", "sequence_length 129", ""),
        (["mesh.tensor=2", "model.mlp_size=333"], "mesh.tensor", "mlp_size 333", ""),
        (["model.hidden_size=130", "mesh.tensor=1"], "mesh.fsdp", "hidden_size 130", "tensor"),
        (["mesh.expert=2"], "mesh.expert", "no experts to deal out", "fsdp"),
        (["mesh.expert=3"], "mesh.expert", "expert 3 does not make the 4 devices", "product"),
        (
            [*EXPERTS, "slice.topology=16x16", "mesh.expert=256", "train.global_batch=256"],
            "mesh.expert",
            "the 128 experts",
            "divisor of 128",
        ),
    ],
)
def test_plan_mesh_on_which_something_does_not_divide_says_what(make_plan, overrides, key, message, hint) -> None:
    with pytest.raises(RecipeError) as caught:
        make_plan(*overrides)
    assert caught.value.where is not None
    assert caught.value.where.key == key
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
