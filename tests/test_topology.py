"""The slice table and the names for it; Ray's own table is the third-party reference."""

from __future__ import annotations

import pytest
from ray._private.accelerators import tpu as ray_tpu

from tpuctl.errors import TopologyError
from tpuctl.topology import SliceShape, generations, parse_accelerator, resolve_slice, shapes

EVERY_SHAPE = [shape for generation in generations() for shape in shapes(generation)]


def shape_id(shape: SliceShape) -> str:
    return f"{shape.generation.name}-{shape.topology}-{shape.machine}"


@pytest.mark.parametrize("shape", EVERY_SHAPE, ids=shape_id)
def test_every_shape_of_the_table_is_known_to_ray_under_the_same_pod_type(shape: SliceShape) -> None:
    accepted = ray_tpu.TPUAcceleratorManager.is_valid_tpu_accelerator_topology(shape.accelerator_type, shape.topology)
    assert accepted
    assert shape.pod_type == ray_tpu.infer_tpu_pod_type_from_topology(shape.topology, shape.accelerator_type)
    assert shape.hosts * shape.chips_per_host == shape.chips


@pytest.mark.parametrize("generation", generations(), ids=lambda generation: generation.name)
def test_default_machine_of_every_topology_has_the_hosts_ray_takes(generation) -> None:
    for topology in generation.topologies:
        shape = resolve_slice(generation.name, topology).shape
        assert shape.chips_per_host == ray_tpu.get_chips_per_host(topology, generation.pod_prefix), topology


def test_table_leaves_out_only_what_google_does_not_build() -> None:
    ours = {g.pod_prefix: set(g.topologies) for g in generations()}
    for version, theirs in ray_tpu.VALID_TPU_TOPOLOGY.items():
        left_out = theirs - ours[version]
        unsorted = {t for t in left_out if [int(d) for d in t.split("x")] != sorted(int(d) for d in t.split("x"))}
        assert left_out - unsorted - {"2x8"} == set()


@pytest.mark.parametrize(
    ("accelerator", "topology", "expected"),
    [
        ("TPU-V6E", "4x4", ("v6e-16", "4x4", 4, 4)),
        ("v6e", "4x4", ("v6e-16", "4x4", 4, 4)),
        ("V6E", " 4 X 4 ", ("v6e-16", "4x4", 4, 4)),
        ("v6e-16", None, ("v6e-16", "4x4", 4, 4)),
        ("v6e-16", "4x4", ("v6e-16", "4x4", 4, 4)),
        ("tpu_v6e", "4×4", ("v6e-16", "4x4", 4, 4)),
        ("tpu-v6e-slice", "4x4", ("v6e-16", "4x4", 4, 4)),
        ("TPU v6 lite", "4x4", ("v6e-16", "4x4", 4, 4)),
        ("trillium", "4x4", ("v6e-16", "4x4", 4, 4)),
        ("v6e:4x4", None, ("v6e-16", "4x4", 4, 4)),
        ("ct6e-standard-4t", "4x4", ("v6e-16", "4x4", 4, 4)),
        ("ct6e-standard-4t", "2x4", ("v6e-8", "2x4", 2, 4)),
        ("ct6e-standard-8t", None, ("v6e-8", "2x4", 1, 8)),
        ("v5litepod-16", None, ("v5litepod-16", "4x4", 4, 4)),
        ("v5e-16", None, ("v5litepod-16", "4x4", 4, 4)),
        ("tpu-v5-lite-podslice", "4x4", ("v5litepod-16", "4x4", 4, 4)),
        ("TPU v5 lite", "1x1", ("v5litepod-1", "1x1", 1, 1)),
        ("v4-16", None, ("v4-16", "2x2x2", 2, 4)),
        ("v4", "4x8x4", ("v4-256", "4x8x4", 32, 4)),
        ("v4-256", None, ("v4-256", "4x4x8", 32, 4)),
        ("v5p-8", None, ("v5p-8", "2x2x1", 1, 4)),
        ("TPU v5", "2x2x2", ("v5p-16", "2x2x2", 2, 4)),
        ("v5p-2x2x2", None, ("v5p-16", "2x2x2", 2, 4)),
        ("tpu7x-128", None, ("v7x-128", "4x4x4", 16, 4)),
        ("v7x-128", None, ("v7x-128", "4x4x4", 16, 4)),
        ("TPU-7X", "2x2x1", ("v7x-8", "2x2x1", 1, 4)),
        ("ironwood", "2x2x2", ("v7x-16", "2x2x2", 2, 4)),
    ],
)
def test_resolve_slice_of_a_spelling_in_use_gives_the_slice(accelerator, topology, expected) -> None:
    shape = resolve_slice(accelerator, topology).shape
    assert (shape.pod_type, shape.topology, shape.hosts, shape.chips_per_host) == expected


@pytest.mark.parametrize(
    ("accelerator", "chips", "devices"), [("v4-16", 8, 8), ("v5p-8", 4, 4), ("tpu7x-128", 64, 128), ("v3-32", 16, 32)]
)
def test_resolve_slice_of_a_name_in_cores_says_the_chips(accelerator, chips, devices) -> None:
    found = resolve_slice(accelerator)
    assert (found.shape.chips, found.shape.devices) == (chips, devices)
    assert any(f"{accelerator} counts TensorCores" in note and f"{chips} chips" in note for note in found.notes)


@pytest.mark.parametrize("accelerator", ["v6e", "v5e"])
def test_resolve_slice_2x4_takes_one_host_and_says_how_to_take_two(accelerator) -> None:
    found = resolve_slice(accelerator, "2x4")
    assert (found.shape.hosts, found.shape.chips_per_host) == (1, 8)
    assert any("1 host × 8 chips" in note and "chips_per_host = 4" in note for note in found.notes)
    other = resolve_slice(accelerator, "2x4", chips_per_host=4)
    assert (other.shape.hosts, other.shape.chips_per_host, other.notes) == (2, 4, ())


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips_per_host", "said"),
    [
        ("v5e", "2x3", None, ["2x3", "1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"]),
        ("v5e", "4x4x4", None, ["2 dimensions", "4x4"]),
        ("v4", "2x2", None, ["3 dimensions", "2x2x1"]),
        ("v6e", "2x8", None, ["2x8", "4x4"]),
        ("v6e", "8x4", None, ["write 4x8"]),
        ("v5p", "16x4x4", None, ["write 4x4x16"]),
        ("v5p", "1x1x1", None, ["Ray", "2x2x1"]),
        ("tpu7x", "4x4x16", None, ["Ray", "4x8x8"]),
        ("v6e", "16", None, ["not a shape", "4x4"]),
        ("v6e", "0x4", None, ["0x4"]),
        ("v6e", "-4x4", None, ["not a shape"]),
        ("v6e", "", None, ["not a shape"]),
        ("v5e", "1x1", 4, ["chips_per_host = 4", "1 host × 1 chip"]),
        ("v6e", "4x4", 8, ["chips_per_host = 8", "4 hosts × 4 chips"]),
        ("ct6e-standard-8t", "4x4", None, ["ct6e-standard-8t", "4 hosts × 4 chips"]),
        ("ct6e-standard-4t", "2x4", 8, ["chips_per_host = 8"]),
        ("v6e-16", "4x8", None, ["16 chips", "32"]),
        ("v4-8", "2x2x2", None, ["4 chips", "TensorCores", "v4-16"]),
        ("v6e-4x4", "4x8", None, ["contradict"]),
    ],
)
def test_resolve_slice_of_an_impossible_shape_lists_the_choices(accelerator, topology, chips_per_host, said) -> None:
    with pytest.raises(TopologyError) as caught:
        resolve_slice(accelerator, topology, chips_per_host=chips_per_host)
    text = f"{caught.value.message} | {caught.value.hint}"
    assert [part for part in said if part not in text] == [], text


@pytest.mark.parametrize(
    ("accelerator", "said"),
    [
        ("tpu-v5-8", ["unknown accelerator 'tpu-v5-8'", "v5p-8", "v5litepod-8"]),
        ("v5", ["v5p", "v5litepod"]),
        ("tpu-v5", ["v5p", "v5litepod"]),
        ("v6-16", ["v6e-16"]),
        ("v7-128", ["tpu7x-128"]),
        ("trilium", ["v6e"]),
        ("a100", ["tpu7x, v6e, v5p, v5e, v4"]),
        ("", ["unknown"]),
        ("v5p-512", ["several", "4x8x8", "4x4x16"]),
        ("v6e", ["needs a topology", "2x2", "16x16"]),
        ("ct6e-standard-4t", ["needs a topology", "2x4"]),
        ("tpu7x-standard-1t", ["Ray"]),
        ("v6e-12", ["12 chips", "v6e-8", "v6e-16"]),
        ("v4-2", ["v4-8"]),
        ("v4-9", ["9 TensorCores", "v4-8"]),
        ("v6e-0", ["v6e-1"]),
    ],
)
def test_resolve_slice_of_a_name_that_fits_no_or_several_slices_names_the_nearest(accelerator, said) -> None:
    with pytest.raises(TopologyError) as caught:
        resolve_slice(accelerator)
    text = f"{caught.value.message} | {caught.value.hint}"
    assert [part for part in said if part not in text] == [], text


@pytest.mark.parametrize(
    ("accelerator", "topology", "wrap", "bounds"),
    [
        ("v6e", "4x4", (False, False, False), (2, 2, 1)),
        ("v6e", "8x16", (False, True, False), (2, 2, 1)),
        ("v5e", "16x16", (True, True, False), (2, 2, 1)),
        ("v5e", "2x4", (False, False, False), (2, 4, 1)),
        ("v5p", "2x2x2", (False, False, False), (2, 2, 1)),
        ("v5p", "4x4x8", (True, True, True), (2, 2, 1)),
    ],
)
def test_shape_gives_wrap_and_host_bounds_as_gke_sets_them(accelerator, topology, wrap, bounds) -> None:
    shape = resolve_slice(accelerator, topology).shape
    assert (shape.wrap, shape.chips_per_host_bounds) == (wrap, bounds)


def test_device_figures_halve_where_a_chip_is_two_devices() -> None:
    ironwood = resolve_slice("tpu7x", "2x2x1").shape
    assert ironwood.devices_per_host == 8
    assert ironwood.generation.bf16_flops_per_device == pytest.approx(1153.5e12)
    assert ironwood.generation.hbm_bytes_per_device == pytest.approx(94.74 * 2**30, rel=1e-6)


@pytest.mark.parametrize(("name", "smallest"), [("v3-8", "v3-32"), ("v2-8", "v2-32"), ("v5p-2", "v5p-8")])
def test_parse_accelerator_of_a_vm_below_the_smallest_slice_says_that_it_exists_but_not_here(name, smallest) -> None:
    with pytest.raises(TopologyError, match="a TPU VM that is smaller than any") as caught:
        parse_accelerator(name)
    assert caught.value.hint == f"the smallest such slice is {smallest}"
