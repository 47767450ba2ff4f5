"""Variables of a job: which are secret, and that secrets are masked."""

from __future__ import annotations

import pytest

from tpuctl.errors import RecipeError
from tpuctl.masking import looks_secret
from tpuctl.plan.environment import masked
from tpuctl.plan.schema import plan_dumps
from tpuctl.storage import client_env

ENVIRON = {"HF_TOKEN": "hf_test123", "PLAIN": "seen"}


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "hf_token",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "OPENAI_API_KEY",
        "WANDB_APIKEY",
        "GITHUB_PAT",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "ACCESSTOKEN",
        "SSH_PASSPHRASE",
    ],
)
def test_looks_secret_of_a_secret_name_is_true(name) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "XLA_FLAGS", "PATH", "MONKEY", "KEYBOARD", "AUTHOR"])
def test_looks_secret_of_a_plain_name_is_false(name) -> None:
    assert not looks_secret(name)


def test_plan_job_sorts_variables_into_plain_and_secret_and_says_so(make_plan) -> None:
    plan = make_plan(
        "job.env.API_KEY=k1", "job.env.A=1", "job.secrets.B=b2", "job.pass_env=HF_TOKEN,PLAIN", environ=ENVIRON
    )
    assert plan.job.env == {**client_env(None), "A": "1", "PLAIN": "seen"}
    assert plan.job.secrets == {"API_KEY": "k1", "HF_TOKEN": "hf_test123", "B": "b2"}
    assert [note for note in plan.notes if "job.env" in note] == [
        "job.env.API_KEY looks secret and is masked in all output"
    ]


def test_plan_job_takes_the_storage_endpoint_of_the_command_to_every_client(make_plan) -> None:
    environ = {"TPUCTL_GCS_ENDPOINT": "http://127.0.0.1:4443"}
    assert make_plan(environ=environ).job.env == client_env("http://127.0.0.1:4443")
    assert "STORAGE_EMULATOR_HOST" not in make_plan().job.env
    mine = make_plan('job.env.FSSPEC_GCS={"requester_pays": true}').job.env
    assert mine["FSSPEC_GCS"] == '{"requester_pays": true}'
    with pytest.raises(RecipeError, match="TPUCTL_GCS_ENDPOINT is '127"):
        make_plan(environ={"TPUCTL_GCS_ENDPOINT": "127.0.0.1:4443"})
    with pytest.raises(RecipeError, match="must hold for the command too"):
        make_plan("job.env.TPUCTL_GCS_ENDPOINT=http://127.0.0.1:4443")


def test_masked_plan_holds_no_secret_value_anywhere(make_plan) -> None:
    plan = make_plan("job.env.API_KEY=zq1", "job.secrets.B=zq2", "job.pass_env=HF_TOKEN", environ=ENVIRON)
    text = plan_dumps(masked(plan))
    assert not [value for value in ("zq1", "zq2", "hf_test123") if value in text]
    assert masked(plan).job.secrets.keys() == plan.job.secrets.keys()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["job.pass_env=NOT_SET"], "NOT_SET is not set"),
        (["job.env.JAX_PLATFORMS=cpu"], "set by tpuctl"),
        (["job.env.TPU_NAME=x"], "set by tpuctl"),
        (["job.env.A=1", "job.secrets.A=2"], "A is given twice"),
        (["job.env.PLAIN=1", "job.pass_env=PLAIN"], "PLAIN is given twice"),
    ],
)
def test_plan_job_with_a_variable_that_can_not_be_refuses_it(make_plan, overrides, message) -> None:
    with pytest.raises(RecipeError, match=message):
        make_plan(*overrides, environ=ENVIRON)


def test_plan_job_places_the_cache_of_compiled_programs_and_leaves_it_open_where_none_is_named(make_plan) -> None:
    assert make_plan().job.compile_cache is None
    assert make_plan("job.compile_cache=compiled").job.compile_cache == "/work/compiled"
    assert make_plan("job.compile_cache=gs://bucket/compiled/").job.compile_cache == "gs://bucket/compiled"
    with pytest.raises(RecipeError, match="names no bucket"):
        make_plan("job.compile_cache=gs://")
