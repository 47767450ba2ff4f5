"""Which hosts a reservation takes, on a real Ray node that has what Ray gives one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest
import ray

from tests.fakes.tiny_training import make_slice
from tpuctl.entrypoints.reservation import reserved
from tpuctl.errors import CapacityError

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def host_of_four() -> Iterator[None]:
    """The only host of a v6e slice of four chips."""
    folder = tempfile.mkdtemp(prefix="rs-", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=2,
        resources={"TPU": 4, "TPU-v6e-4-head": 1},
        object_store_memory=100 << 20,
        include_dashboard=False,
        _temp_dir=folder,
        log_to_driver=False,
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def test_slice_of_one_host_is_found_by_its_shape(host_of_four: None) -> None:
    with reserved(make_slice("v6e", "2x2", hosts=1, chips=4), timeout_seconds=30) as slices:
        assert slices.plan.topology == "2x2"


@pytest.mark.parametrize(("generation", "topology", "chips"), [("v6e", "1x1", 1), ("v5litepod", "2x2", 4)])
def test_host_of_another_shape_or_generation_is_not_taken_though_it_has_the_chips(
    host_of_four: None, generation: str, topology: str, chips: int
) -> None:
    with (
        pytest.raises(CapacityError, match="did not all come within 2 s"),
        reserved(make_slice(generation, topology, hosts=1, chips=chips), timeout_seconds=2),
    ):
        pass
