"""Simulated shapes for tests: the smallest of one host, and the smallest of several."""

from __future__ import annotations

from tpuctl.cluster.shape import SimulatedShape

ONE_HOST = SimulatedShape(
    accelerator_type="TPU-V6E", pod_type="v6e-4", topology="2x2", hosts=1, chips_per_host=4, devices_per_host=4
)
TWO_HOSTS = SimulatedShape(
    accelerator_type="TPU-V4", pod_type="v4-16", topology="2x2x2", hosts=2, chips_per_host=4, devices_per_host=4
)
