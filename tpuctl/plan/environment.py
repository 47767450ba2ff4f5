"""The environment of a job, and what of it must never be printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tpuctl.masking import MASK, looks_secret
from tpuctl.plan.here import Here
from tpuctl.plan.places import storage_place
from tpuctl.plan.schema import JobPlan, Plan
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import Recipe
from tpuctl.storage import ENDPOINT_VARIABLE, client_env

# tpuctl sets these itself on every host; a value of the user's would put processes on the wrong devices.
_OURS = {"JAX_PLATFORMS", "TPU_NAME", "TPU_WORKER_ID", "TPU_TOPOLOGY", "TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES"}
# The submitting side must reach the same buckets, so these are set in the environment of the command.
_FROM_ENVIRON = {ENDPOINT_VARIABLE, "STORAGE_EMULATOR_HOST"}


def plan_job(recipe: Recipe, *, environ: Mapping[str, str], here: Here, findings: Findings) -> JobPlan:
    """The job's environment and limits, secrets kept apart."""
    job = recipe.job
    passed = _passed(recipe, environ, findings)
    plain = {name: value for name, value in {**job.env, **passed}.items() if not looks_secret(name)}
    hidden = {name: value for name, value in {**job.env, **passed}.items() if looks_secret(name)}
    findings.notes.extend(
        f"job.env.{name} looks secret and is masked in all output" for name in sorted(hidden.keys() & job.env.keys())
    )
    _check_names(recipe, findings)
    return JobPlan(
        env={**_storage_clients(environ, findings), **plain},
        secrets={**hidden, **job.secrets},
        pip=job.pip,
        compile_cache=_cache(job.compile_cache, here=here, findings=findings),
        max_failures=job.max_failures,
        timeout_seconds=job.timeout,
        start_timeout_seconds=job.start_timeout,
        stop_grace_seconds=job.stop_grace,
    )


def masked(plan: Plan) -> Plan:
    """The plan with every secret's value replaced: the form to print, log or keep."""
    return replace(plan, job=replace(plan.job, secrets=dict.fromkeys(plan.job.secrets, MASK)))


def _cache(asked: str | None, *, here: Here, findings: Findings) -> str | None:
    return None if asked is None else storage_place("job.compile_cache", asked, here=here, findings=findings)


def _storage_clients(environ: Mapping[str, str], findings: Findings) -> dict[str, str]:
    """How every client library in the job reaches gs://, whether or not this recipe names a bucket."""
    endpoint = environ.get(ENDPOINT_VARIABLE)
    if endpoint and not endpoint.startswith(("http://", "https://")):
        findings.refuse("job", f"{ENDPOINT_VARIABLE} is {endpoint!r}", "write http://host:port, or unset it")
    return client_env(endpoint)


def _passed(recipe: Recipe, environ: Mapping[str, str], findings: Findings) -> dict[str, str]:
    missing = [name for name in recipe.job.pass_env if name not in environ]
    for name in missing:
        findings.refuse("job.pass_env", f"{name} is not set in your environment", f"export {name}=… first")
    return {name: environ[name] for name in recipe.job.pass_env if name in environ}


def _check_names(recipe: Recipe, findings: Findings) -> None:
    job = recipe.job
    for table, names in (("env", list(job.env)), ("secrets", list(job.secrets)), ("pass_env", list(job.pass_env))):
        for name in names:
            path = f"job.{table}" if table == "pass_env" else f"job.{table}.{name}"
            if name in _OURS:
                findings.refuse(path, f"{name} is set by tpuctl on every host", "leave it out")
            if name in _FROM_ENVIRON:
                hint = f"export {ENDPOINT_VARIABLE}=http://host:port where you run tpuctl; jobs get it from there"
                findings.refuse(path, f"{name} must hold for the command too", hint)
    for name in sorted((job.env.keys() & job.secrets.keys()) | (set(job.pass_env) & {*job.env, *job.secrets})):
        findings.refuse("job", f"{name} is given twice", "keep one of env, secrets and pass_env")
