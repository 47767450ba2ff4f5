"""Compiled programs kept in a bucket: found by the next start, and never a reason to fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from tests.conftest import BUCKET
from tests.fakes.gcs_process import GcsService
from tests.fakes.tiny_training import make_plan
from tpuctl.entrypoints.programs import CACHE_VARIABLE, keep_programs
from tpuctl.plan.schema import Plan

SHARED = f"gs://{BUCKET}/programs"


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()


def plan_with(cache: str | None, *, directory: str = f"gs://{BUCKET}/run") -> Plan:
    plan = make_plan()
    return replace(plan, run=replace(plan.run, directory=directory), job=replace(plan.job, compile_cache=cache))


def start(plan: Plan) -> tuple[list[str], float]:
    """What a new process would do: set its cache, compile and run a program."""
    said: list[str] = []
    reset_cache()
    jax.clear_caches()
    keep_programs(plan, tell=said.append)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return said, float(jax.jit(lambda x: jnp.tanh(x) * 3 + 1)(jnp.float32(0.5)))


def programs(gcs: GcsService, below: str) -> dict[str, int]:
    """The kept programs, each with its generation."""
    found = gcs.buckets.of(BUCKET).items()
    return {name: item.generation for name, item in found if name.startswith(below) and name.endswith("-cache")}


@pytest.mark.parametrize(("cache", "below"), [(None, "run/compiled/"), (SHARED, "programs/")])
def test_programs_in_a_bucket_are_written_once_and_read_by_the_next_start(
    cache: str | None, below: str, gcs: GcsService
) -> None:
    said, value = start(plan_with(cache))
    assert said == []
    kept = programs(gcs, below)
    assert kept
    reading = gcs.fail(op="read", name="-cache$", times=None)  # sets no way to fail: it counts
    assert start(plan_with(cache)) == ([], value)
    assert programs(gcs, below) == kept
    assert reading.hits >= len(kept)


def test_missing_bucket_or_right_is_told_and_programs_are_compiled(gcs: GcsService) -> None:
    said, value = start(plan_with("gs://no-such-bucket/programs"))
    assert said[0].startswith("compiled programs are not kept: gs://no-such-bucket/programs/")
    assert "there is no bucket 'no-such-bucket'" in said[0]
    assert jax.config.jax_compilation_cache_dir is None
    gcs.fail(op="insert", status=403, message="x does not have storage.objects.create access", times=None)
    said, again = start(plan_with(SHARED))
    assert "storage.objects.create" in said[0]
    assert again == value


def test_missing_bucket_in_the_environment_is_told_too(gcs: GcsService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "gs://no-such-bucket/programs")
    assert "there is no bucket 'no-such-bucket'" in start(plan_with(None))[0][0]


def test_damaged_program_is_a_warning_and_is_compiled_anew(gcs: GcsService) -> None:
    _, value = start(plan_with(SHARED))
    for name in programs(gcs, "programs/"):
        gcs.buckets.put(BUCKET, name, b"no program", query={}, metadata={})
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache entry"):
        assert start(plan_with(SHARED))[1] == value


def test_cache_of_the_host_stands_where_the_recipe_names_none(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "/of/the/machine")
    before = jax.config.jax_compilation_cache_dir
    keep_programs(plan_with(None, directory=str(tmp_path)), tell=pytest.fail)
    assert jax.config.jax_compilation_cache_dir == before
    keep_programs(plan_with(str(tmp_path / "mine")), tell=pytest.fail)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")
