"""The mesh and the map from logical to mesh axes."""

from dataclasses import dataclass

import jax
import pytest
from jax.sharding import PartitionSpec

from tpuctl.mesh import AXES, RULES, MeshError, create_mesh, host_rows, mesh_axis, named_sharding
from tpuctl.plan.schema import MeshPlan


@dataclass(frozen=True)
class FakeDevice:
    """As much of a TPU device as the mesh looks at; jax's Mesh wants it hashable."""

    id: int
    coords: tuple[int, int, int]
    process_index: int
    slice_index: int = 0
    core_on_chip: int = 0
    platform: str = "tpu"
    device_kind: str = "fake"


def fake_slice(x: int, y: int, z: int = 1, *, slice_index: int = 0) -> list[FakeDevice]:
    """A slice of hosts of 2 × 2 chips, in the order of hosts and not of the torus."""
    chips = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
    host = {chip: (chip[2] * (y // 2) + chip[1] // 2) * (x // 2) + chip[0] // 2 for chip in chips}
    ordered = sorted(chips, key=lambda chip: (host[chip], chip[::-1]))
    return [
        FakeDevice(id=n + 1000 * slice_index, coords=chip, process_index=host[chip], slice_index=slice_index)
        for n, chip in enumerate(ordered)
    ]


def mesh_plan(**axes: int) -> MeshPlan:
    return MeshPlan(**({"slice": 1, "data": 1, "fsdp": 1, "expert": 1, "tensor": 1} | axes))


def test_create_mesh_names_the_axes_outermost_first():
    mesh = create_mesh(mesh_plan(data=2, fsdp=2, tensor=2))
    assert mesh.axis_names == AXES == ("slice", "data", "fsdp", "expert", "tensor")
    assert dict(mesh.shape) == {"slice": 1, "data": 2, "fsdp": 2, "expert": 1, "tensor": 2}


def test_create_mesh_with_another_number_of_devices_is_refused_with_both_numbers():
    with pytest.raises(MeshError, match=r"fsdp 3 × expert 1 × tensor 1 has 3 devices, but there are 8"):
        create_mesh(mesh_plan(fsdp=3))


def test_create_mesh_puts_tpu_chips_in_the_order_of_the_torus():
    mesh = create_mesh(mesh_plan(fsdp=4, tensor=4), devices=fake_slice(4, 4))
    rows = [[device.coords[:2] for device in row] for row in mesh.devices[0, 0, :, 0]]
    assert rows == [[(x, y) for x in range(4)] for y in range(4)]


def test_create_mesh_puts_each_slice_in_its_own_index():
    devices = fake_slice(2, 2, slice_index=1) + fake_slice(2, 2)
    mesh = create_mesh(mesh_plan(slice=2, fsdp=4), devices=devices)
    assert [{device.slice_index for device in half.flat} for half in mesh.devices] == [{0}, {1}]


def test_create_mesh_over_another_number_of_slices_is_refused():
    devices = fake_slice(2, 2) + fake_slice(2, 2, slice_index=1)
    with pytest.raises(MeshError, match="mesh axis slice is 4, but the devices lie in 2 slices"):
        create_mesh(mesh_plan(slice=4, fsdp=2), devices=devices)


@pytest.mark.parametrize(
    ("torus", "axes", "rings"),
    [
        ((4, 4), {"fsdp": 16}, {"fsdp": (4, 4), "tensor": (1,)}),
        ((2, 2, 2), {"fsdp": 8}, {"fsdp": (2, 2, 2)}),
        ((4, 4), {"fsdp": 4, "tensor": 4}, {"fsdp": (4,), "tensor": (4,)}),
        ((4, 4), {"fsdp": 8, "tensor": 2}, {"fsdp": (4, 2), "tensor": (2,)}),
        ((4, 4), {"data": 2, "fsdp": 8}, {"data": (2,), "fsdp": (2, 4)}),
        ((8, 4), {"data": 4, "fsdp": 8}, {"data": (4,), "fsdp": (8,)}),
        ((2, 2, 4), {"fsdp": 4, "tensor": 4}, {"fsdp": (4,), "tensor": (2, 2)}),
        ((4, 4), {"fsdp": 4, "expert": 4}, {"fsdp": (4,), "expert": (4,)}),
    ],
)
def test_mesh_axis_knows_the_rings_it_spans(torus, axes, rings):
    mesh = create_mesh(mesh_plan(**axes), devices=fake_slice(*torus))
    assert {name: mesh_axis(mesh, name).rings for name in rings} == rings


def test_mesh_axis_of_neighbours_is_the_one_they_make():
    mesh = create_mesh(mesh_plan(fsdp=4, expert=4), devices=fake_slice(4, 4))
    both = mesh_axis(mesh, "fsdp", "expert")
    assert (both.name, both.rings, both.size) == (("fsdp", "expert"), (4, 4), 16)
    assert mesh_axis(create_mesh(mesh_plan(fsdp=8)), "fsdp", "expert").name == "fsdp"


def test_mesh_axis_off_tpu_is_one_ring():
    axis = mesh_axis(create_mesh(mesh_plan(fsdp=4, tensor=2)), "fsdp")
    assert (axis.rings, axis.size) == ((4,), 4)


def test_rules_split_a_weight_by_the_meaning_of_its_dimensions():
    assert RULES.spec(("layer", "embed", "mlp")) == PartitionSpec(None, ("fsdp", "expert", "data"), "tensor")
    assert RULES.spec(("layer", "norm")) == PartitionSpec(None, None)
    assert RULES.spec(("batch", None)) == PartitionSpec(("slice", "data", "fsdp", "expert"), None)


def test_rules_refuse_two_dimensions_on_one_mesh_axis():
    with pytest.raises(MeshError, match=r"'vocab' meets another on mesh axis 'tensor'"):
        RULES.spec(("mlp", "vocab"))


def test_rules_refuse_an_unknown_logical_axis_and_name_the_known():
    with pytest.raises(MeshError, match=r"no sharding rule for the logical axis 'expertt'; known: batch, layer"):
        RULES.spec(("expertt",))


def test_named_sharding_refuses_a_dimension_that_does_not_divide():
    mesh = create_mesh(mesh_plan(fsdp=4, tensor=2))
    with pytest.raises(MeshError, match="kv_heads of size 3 does not divide into 2 parts over tensor"):
        named_sharding(mesh, ("embed", "kv_heads"), shape=(8, 3))


def test_host_rows_of_a_single_host_are_all_rows():
    assert host_rows(create_mesh(mesh_plan(fsdp=4, tensor=2)), global_batch=8) == tuple(range(8))


def test_host_rows_of_a_batch_that_does_not_divide_are_refused():
    with pytest.raises(MeshError, match="batch of size 6 does not divide into 8 parts over slice×data×fsdp×expert"):
        host_rows(create_mesh(mesh_plan(fsdp=8)), global_batch=6)


def test_create_mesh_takes_all_devices_by_default():
    assert set(create_mesh(mesh_plan(fsdp=8)).devices.flat) == set(jax.devices())
