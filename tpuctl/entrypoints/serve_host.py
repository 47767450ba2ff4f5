"""What a host does in serving: one process that holds the chips, runs the engine and answers HTTP."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from tpuctl.entrypoints.seats import is_simulated
from tpuctl.plan.schema import EmbeddingPlan, ServingPlan, plan_from_json
from tpuctl.runs.events import Event, event
from tpuctl.serve.border import HttpOptions
from tpuctl.serve.http import Front
from tpuctl.serve.keys import Keys, read_key_file, read_keys
from tpuctl.serve.limits import KeyLimits
from tpuctl.serve.server import Loaded, LoadedEncoder, Server, ServerOptions, Tls

if TYPE_CHECKING:
    from tpuctl.plan.serve_schema import EndpointPlan

# ``run`` takes one of them for good; news and a stop are asked for meanwhile.
CALLS_AT_ONCE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """What the driver has not told yet. ``figures`` are None before the endpoint is ready."""

    events: list[Event]
    figures: dict[str, Any] | None


class ServeHost:
    """To be made a Ray actor of ``CALLS_AT_ONCE`` threads."""

    def __init__(self, plan_document: dict[str, Any]) -> None:
        self._plan: ServingPlan | EmbeddingPlan = plan_from_json(plan_document)  # type: ignore[assignment]
        os.environ.update(self._plan.job.env | self._plan.job.secrets)
        os.environ.setdefault("JAX_PLATFORMS", "tpu")
        self._simulated = is_simulated()
        self._front = Front(http_options(self._plan.endpoint))
        self._server = Server(self._front, server_options(self._plan))
        self._told: list[Event] = []
        self._began()

    def run(self) -> None:
        """Load the model and serve it until ``stop``."""
        asyncio.run(self._server.run(self._load, on_ready=self._tell_ready))

    def stop(self) -> None:
        """Let answers under way end, and ``run`` with them."""
        self._server.stop()

    def news(self, *, since: int) -> News:
        """What there is to tell but for the first ``since`` events, and the figures of this moment."""
        serving = self._front.serving
        return News(events=self._told[since:], figures=None if serving is None else serving.figures())

    def tell(self, phase: str, **fields: Any) -> None:
        """Make known what is done, here and to who asks whether this is ready."""
        self._front.phase = phase
        self._told.append(event("phase", phase=phase, **fields))

    def _began(self) -> None:
        self._started = time.monotonic()
        self._front.phase = "loading weights"

    def _tell_ready(self) -> None:
        self._told.append(ready_event([self._plan], port=self._server.port, seconds=time.monotonic() - self._started))

    def _load(self) -> Loaded | LoadedEncoder:
        # Not at the top: the driver imports this file too, and must not touch the chips.
        from tpuctl.entrypoints.serve_encoder import load_served_encoder
        from tpuctl.entrypoints.serve_model import load_model

        if isinstance(self._plan, EmbeddingPlan):
            return load_served_encoder(self._plan, simulated=self._simulated, tell=self.tell)
        return load_model(self._plan, simulated=self._simulated, tell=self.tell)


def ready_event(plans: Sequence[ServingPlan | EmbeddingPlan], *, port: int, seconds: float) -> Event:
    """The facts of an endpoint of this process that is ready: that of all these plans, which have one address."""
    endpoint = plans[0].endpoint
    scheme = "http" if endpoint.tls_cert is None else "https"
    url = f"{scheme}://{_address(endpoint)}:{port}"
    names = [plan.endpoint.name for plan in plans]
    return event("ready", url=url, model=", ".join(names), models=names, seconds=seconds, curl=_curl(url, plans[0]))


def http_options(endpoint: EndpointPlan) -> HttpOptions:
    """What the plan says of HTTP."""
    limits = KeyLimits(requests_per_second=endpoint.key_requests_per_second, concurrent=endpoint.key_concurrent)
    return HttpOptions(keys=_keys(endpoint), key_limits=limits, max_body_bytes=endpoint.max_body_bytes)


def _keys(endpoint: EndpointPlan) -> Keys | None:
    if endpoint.api_key_file is not None:
        return read_key_file(Path(endpoint.api_key_file))
    if endpoint.api_key_env is not None:
        return read_keys(os.environ.get(endpoint.api_key_env, ""), source=endpoint.api_key_env)
    return None


def server_options(plan: ServingPlan | EmbeddingPlan) -> ServerOptions:
    """What the plan says of the server."""
    endpoint = plan.endpoint
    at_once = plan.engine.max_sequences if isinstance(plan, ServingPlan) else plan.encoder.batch_rows
    tls = None
    if endpoint.tls_cert is not None and endpoint.tls_key is not None:
        tls = Tls(cert=endpoint.tls_cert, key=endpoint.tls_key)
    return ServerOptions(
        host=endpoint.host,
        port=endpoint.port,
        max_in_flight=at_once + endpoint.max_waiting,
        timeout_seconds=endpoint.timeout_seconds,
        drain_seconds=endpoint.drain_seconds,
        tls=tls,
    )


def _address(endpoint: EndpointPlan) -> str:
    if endpoint.host in ("0.0.0.0", "::"):
        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    return f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host


def _curl(url: str, plan: ServingPlan | EmbeddingPlan) -> str:
    endpoint = plan.endpoint
    path, fields = "/v1/completions", '"prompt": "Once upon a time", "max_tokens": 20'
    if isinstance(plan, EmbeddingPlan):
        path, fields = "/v1/embeddings", '"input": "Once upon a time"'
    body = f'{{"model": "{endpoint.name}", {fields}}}'
    key = [] if endpoint.is_open else ["-H", "Authorization: Bearer $KEY"]
    words = ["curl", f"{url}{path}", "-H", "Content-Type: application/json", *key, "-d", body]
    # The key is the reader's to fill in, so the shell must see the dollar.
    return shlex.join(words).replace("'Authorization: Bearer $KEY'", '"Authorization: Bearer $KEY"')
