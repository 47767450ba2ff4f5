from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.plans import a_plan
from tests.fakes.shapes import ONE_HOST, TWO_HOSTS
from tpuctl.cluster.shape import SimulatedShape, host_specs
from tpuctl.topology import resolve_slice


def test_from_slice_of_a_plan_takes_its_slices() -> None:
    plan = replace(
        a_plan().slice, pod_type="v4-16", topology="2x2x2", hosts=2, chips_per_host=4, devices_per_chip=1, slices=3
    )
    shape = SimulatedShape.from_slice(plan)
    assert (shape.hosts, shape.slices, shape.total_hosts, shape.devices_per_host) == (2, 3, 6, 4)


def test_from_slice_of_the_table_takes_the_given_number_of_slices() -> None:
    assert SimulatedShape.from_slice(resolve_slice("v4", "2x2x2").shape, slices=2) == replace(TWO_HOSTS, slices=2)


def test_from_slice_of_two_devices_per_chip_counts_devices() -> None:
    shape = SimulatedShape.from_slice(resolve_slice("tpu7x", "2x2x1").shape)
    assert (shape.chips_per_host, shape.devices_per_host, shape.pod_type) == (4, 8, "v7x-8")


def test_host_specs_of_two_slices_numbers_hosts_within_each() -> None:
    specs = host_specs(replace(TWO_HOSTS, slices=2))
    assert [(spec.slice_name, spec.worker_id) for spec in specs] == [
        ("sim-0", 0),
        ("sim-0", 1),
        ("sim-1", 0),
        ("sim-1", 1),
    ]


def test_host_specs_environment_is_that_of_a_tpu_host_on_cpus() -> None:
    assert host_specs(TWO_HOSTS)[1].environment == {
        "TPUCTL_SIMULATED": "1",
        "TPU_NAME": "sim-0",
        "TPU_WORKER_ID": "1",
        "TPU_TOPOLOGY": "2x2x2",
        "TPU_ACCELERATOR_TYPE": "v4-16",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (ONE_HOST, "v6e-2x2"),
        (replace(TWO_HOSTS, slices=2), "v4-2x2x2-2slices"),
        (replace(ONE_HOST, topology="2x4", chips_per_host=8), "v6e-2x4-8t"),
    ],
)
def test_name_tells_shapes_apart(shape: SimulatedShape, name: str) -> None:
    assert shape.name == name


def test_covers_takes_fewer_equal_slices_and_nothing_else() -> None:
    two = replace(TWO_HOSTS, slices=2)
    assert two.covers(TWO_HOSTS)
    assert not TWO_HOSTS.covers(two)
    assert not two.covers(replace(TWO_HOSTS, topology="2x2x4"))
    assert not ONE_HOST.covers(replace(ONE_HOST, devices_per_host=1))


def test_shape_of_several_kinds_of_slices_counts_equal_ones_together() -> None:
    shape = SimulatedShape.of([replace(a_plan().slice, slices=2), resolve_slice("v4", "2x2x2").shape, a_plan().slice])
    assert [part.slices for part in shape.parts] == [3, 1]
    assert shape.total_hosts == 3 * a_plan().slice.hosts + 2
    assert [spec.slice_name for spec in host_specs(shape)] == ["sim-0", "sim-1", "sim-2", "sim-3", "sim-3"]
    assert host_specs(shape)[-1].environment["TPU_TOPOLOGY"] == "2x2x2"


def test_mixed_shape_covers_its_parts_and_no_more_of_them() -> None:
    mixed = replace(ONE_HOST, beside=(TWO_HOSTS,))
    assert mixed.name == "v6e-2x2_v4-2x2x2"
    assert str(mixed) == f"{ONE_HOST} and {TWO_HOSTS}"
    assert all(mixed.covers(part) for part in (ONE_HOST, TWO_HOSTS, mixed, replace(TWO_HOSTS, beside=(ONE_HOST,))))
    assert not mixed.covers(replace(ONE_HOST, beside=(replace(TWO_HOSTS, slices=2),)))
    assert not ONE_HOST.covers(mixed)


def test_name_of_many_shapes_is_one_that_a_cluster_may_have() -> None:
    many = replace(ONE_HOST, beside=tuple(replace(TWO_HOSTS, topology=f"2x2x{2 * count}") for count in range(1, 6)))
    assert len(many.name) <= 41
    assert many.name != replace(many, slices=2).name
