"""Paths and URIs, and who may write to a local directory."""

from __future__ import annotations

import pytest

from tpuctl.errors import RecipeError
from tpuctl.plan.places import check_shared_storage

TWO_HOSTS = ["slice.accelerator=v5p", "slice.topology=2x2x2"]


@pytest.mark.parametrize(
    ("text", "directory"),
    [
        ("run.directory=unset", "/work/runs/r"),
        ("run.directory=here", "/work/here"),
        ("run.directory=../up/./x/", "/up/x"),
        ("run.directory=/abs/x", "/abs/x"),
        ("run.directory=~/x", "/home/me/x"),
        ("run.directory=file:///abs/y", "/abs/y"),
        ("run.directory=my data/a+b[1]%3A", "/work/my data/a+b[1]%3A"),
    ],
)
def test_plan_run_makes_the_directory_absolute(make_plan, text, directory) -> None:
    assert make_plan(text).run.directory == directory


def test_plan_data_makes_paths_absolute_and_gives_built_in_text_its_held_out_part(make_plan) -> None:
    data = make_plan("data.uri=d/*.parquet", "data.tokenizer=tok/tokenizer.json", "model.vocab_size=512").data
    assert (data.uri, data.eval_uri, data.tokenizer) == (
        "/work/d/*.parquet",
        "/work/data/held-out",
        "/work/tok/tokenizer.json",
    )
    built_in = make_plan("data.uri=builtin:python-stdlib", "data.eval_uri=unset").data
    assert (built_in.uri, built_in.eval_uri) == ("builtin:python-stdlib", "builtin:python-stdlib/held-out")
    assert make_plan("data.uri=builtin:python-stdlib", "data.eval_uri=mine").data.eval_uri == "/work/mine"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("run.directory=s3://b/x", "can't be used", "a local path"),
        ("run.directory=gs:/b/x", "can't be used", "a local path"),
        ("run.directory=gs://", "names no bucket", "gs://bucket/path"),
        ("data.uri=gs:///x", "names no bucket", "gs://bucket/path"),
        ("data.uri=https://x/y.parquet", "can't be used", "a local path"),
        ("data.eval_uri=builtin:python-stdlib", "its own held-out part", "leave it out"),
        ("data.eval_uri=hf://b/x", "can't be used", ""),
        ("data.uri=builtin:pyton-stdlib", "unknown built-in", "builtin:python-stdlib"),
        ("data.tokenizer=byte", "unknown tokenizer", "'bytes'"),
        ("data.tokenizer=BYTES", "unknown tokenizer", "'bytes'"),
        ("data.tokenizer=bpe", "unknown tokenizer", "bpe:N"),
        ("data.tokenizer=bpe:many", "expected bpe:N", "bpe:8192"),
        ("data.tokenizer=bpe:100", "expected bpe:N", "257"),
        ("data.tokenizer=s3://b/tokenizer.json", "unknown tokenizer", "gs:// URI"),
    ],
)
def test_plan_of_a_place_that_can_not_be_used_says_which_can(make_plan, text, message, hint) -> None:
    with pytest.raises(RecipeError) as caught:
        make_plan(text)
    assert caught.value.where is not None
    assert caught.value.where.key == text.partition("=")[0]
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_plan_keeps_uris_of_buckets_as_they_are(make_plan) -> None:
    plan = make_plan(
        "run.directory=gs://my-bucket/runs/one/",
        "data.uri=gs://my-bucket/my data/a+b[1]%3A.parquet",
        "data.tokenizer=gs://my-bucket/llama",
        "model.vocab_size=300",
    )
    assert plan.run.directory == "gs://my-bucket/runs/one"
    assert plan.data.uri == "gs://my-bucket/my data/a+b[1]%3A.parquet"
    assert plan.data.tokenizer == "gs://my-bucket/llama"


@pytest.mark.parametrize(
    ("overrides", "simulated"),
    [
        ([], False),
        (TWO_HOSTS, True),
        ([*TWO_HOSTS, "run.shared=true"], False),
        ([*TWO_HOSTS, "run.directory=gs://my-bucket/run"], False),
    ],
)
def test_check_shared_storage_accepts_what_all_hosts_see(make_plan, overrides, simulated) -> None:
    check_shared_storage(make_plan(*overrides), simulated=simulated)


@pytest.mark.parametrize("overrides", [TWO_HOSTS, ["slice.slices=2"], ["slice.topology=2x4", "slice.chips_per_host=4"]])
def test_check_shared_storage_refuses_a_local_directory_on_several_hosts(make_plan, overrides) -> None:
    with pytest.raises(RecipeError, match="local, but the 2 hosts") as caught:
        check_shared_storage(make_plan(*overrides, "run.directory=/tmp/ckpt"), simulated=False)
    assert "run.shared" in (caught.value.hint or "")
