from __future__ import annotations

from dataclasses import replace

import jax
import pytest

from tests.fakes.tiny_training import make_plan, make_slice
from tpuctl.errors import ClusterError
from tpuctl.plan.schema import Plan
from tpuctl.train.devices import verify_devices


def plan_of(*, hosts: int, chips: int) -> Plan:
    return replace(make_plan(), slice=make_slice("v5p", "2x2x2", hosts=hosts, chips=chips))


def test_verify_devices_of_the_planned_simulated_slice_passes() -> None:
    verify_devices(plan_of(hosts=1, chips=jax.device_count()), simulated=True)


def test_verify_devices_on_cpu_without_simulation_is_refused() -> None:
    with pytest.raises(ClusterError, match="expected 4 TPU devices, found CPU") as refusal:
        verify_devices(plan_of(hosts=1, chips=4), simulated=False)

    assert "another process holding the chips" in (refusal.value.hint or "")


def test_verify_devices_with_one_process_of_four_says_how_many_joined() -> None:
    local = jax.local_device_count()

    with pytest.raises(ClusterError, match=rf"joined 1 of 4: this host sees {local} devices, expected {4 * local}"):
        verify_devices(plan_of(hosts=4, chips=4 * local), simulated=True)


def test_verify_devices_with_too_few_devices_names_both_counts() -> None:
    with pytest.raises(ClusterError, match=rf"host 0 has {jax.device_count()} devices, expected 64"):
        verify_devices(plan_of(hosts=1, chips=64), simulated=True)


def test_verify_devices_on_another_platform_than_simulated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")

    with pytest.raises(ClusterError, match="expected 8 CPU devices, found TPU"):
        verify_devices(plan_of(hosts=1, chips=8), simulated=True)
