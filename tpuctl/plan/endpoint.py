"""Where a model is served, and to whom: the table ``serve`` of a recipe. Pure."""

from __future__ import annotations

from tpuctl.plan.here import Here
from tpuctl.plan.schema import JobPlan
from tpuctl.plan.serve_schema import EndpointPlan
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import ServingRecipe
from tpuctl.recipe.serving import ServeTable


def plan_endpoint(recipe: ServingRecipe, job: JobPlan, *, name: str, here: Here, findings: Findings) -> EndpointPlan:
    """The endpoint of a recipe; ``name`` is the model's own."""
    table = recipe.serve
    if table.api_key_env is not None and table.api_key_env not in {**job.env, **job.secrets}:
        message = f"the job has no variable {table.api_key_env}"
        findings.refuse("serve.api_key_env", message, f'add it: [job] pass_env = ["{table.api_key_env}"]')
    if table.drain > recipe.job.stop_grace:
        message = f"{table.drain:g} s to drain, and the job is killed {recipe.job.stop_grace:g} s after a stop"
        findings.refuse("serve.drain", message, "raise job.stop_grace, or lower it")
    most = recipe.slice.slices
    plan = EndpointPlan(
        name=table.name or name,
        host=table.host,
        port=table.port,
        api_key_file=_absolute(table.api_key_file, here),
        api_key_env=table.api_key_env,
        key_requests_per_second=table.key_requests_per_second,
        key_concurrent=table.key_concurrent,
        tls_cert=_absolute(table.tls_cert, here),
        tls_key=_absolute(table.tls_key, here),
        max_waiting=table.max_waiting,
        max_body_bytes=table.max_body,
        timeout_seconds=table.timeout,
        drain_seconds=table.drain,
        min_replicas=most if table.min_replicas is None else table.min_replicas,
        max_replicas=most,
        idle_seconds=table.idle,
    )
    _check(table, plan, findings)
    return plan


def _check(table: ServeTable, plan: EndpointPlan, findings: Findings) -> None:
    if plan.min_replicas > plan.max_replicas:
        message = f"{plan.min_replicas} replicas need as many slices, and there are {plan.max_replicas}"
        findings.refuse("serve.min_replicas", message, f"use at most {plan.max_replicas}, or raise slice.slices")
    for key, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if getattr(table, key) is not None and getattr(table, other) is None:
            findings.refuse(f"serve.{key}", f"without serve.{other} there is no HTTPS", f"set {other} too")
    for key in ("key_requests_per_second", "key_concurrent"):
        if getattr(table, key) is not None and plan.is_open:
            findings.refuse(f"serve.{key}", "there are no keys to limit", "set api_key_env or api_key_file")
        if getattr(table, key) is not None and plan.max_replicas > 1:
            findings.refuse(f"serve.{key}", "each replica would count by itself", "leave it out, or serve one replica")
    if plan.is_open and not plan.is_local:
        findings.notes.append(
            f"serve.host = {plan.host} without an API key: whoever reaches the port may use the model"
        )
    if not plan.is_open and not plan.is_local and plan.tls_cert is None:
        findings.notes.append(
            f"serve.host = {plan.host} without serve.tls_cert: API keys cross the network as plain text"
        )


def _absolute(path: str | None, here: Here) -> str | None:
    return None if path is None else here.absolute(path)
