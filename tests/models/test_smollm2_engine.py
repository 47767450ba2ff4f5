"""The real model through the engine, against its plain forward pass."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.engine.engine import Engine, create_engine
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.request import Request, SamplingParams
from tpuctl.engine.runner import RunnerOptions
from tpuctl.mesh import create_mesh, named_sharding
from tpuctl.model_folder import read_config
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.nn.decoder import TokenRows
from tpuctl.nn.params import bind, init_params, logical_axes
from tpuctl.nn.weights import load_params
from tpuctl.plan.schema import MeshPlan

MODEL = os.environ.get("TPUCTL_TEST_MODEL", "")
LENGTH, OUT = 96, 24

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL, reason="TPUCTL_TEST_MODEL is not set; builtin:smollm2-135m is fetched"),
]


def test_greedy_prompts_together_equal_the_forward_pass() -> None:
    folder = model_folder(MODEL)
    spec = spec_from_config(read_config(folder))
    mesh = create_mesh(MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=1), devices=jax.devices()[:1])
    shardings = jax.tree.map(
        lambda axes, leaf: named_sharding(mesh, axes, shape=leaf.shape),
        logical_axes(spec),
        jax.eval_shape(lambda: init_params(spec, jax.random.key(0))),
        is_leaf=lambda node: isinstance(node, tuple),
    )
    params = load_params(spec, folder, family="llama", shardings=shardings, dtype=jnp.float32).params
    options = EngineOptions(
        max_length=LENGTH, num_pages=40, page_size=16, max_running=8, max_step_tokens=32, min_step_tokens=8
    )
    engine = create_engine(spec, params, mesh=mesh, options=options, run=RunnerOptions(dtype=jnp.float32))
    prompts = _prompts()
    outputs = _run(engine, prompts)

    @jax.jit
    def logits(params: Any, tokens: Any) -> Any:
        positions = jnp.arange(LENGTH)[None]
        return bind(spec, params).logits(
            TokenRows(tokens=tokens, positions=positions, segment_ids=jnp.ones_like(positions))
        )[0]

    for prompt, made in zip(prompts, outputs, strict=True):
        tokens = np.zeros((1, LENGTH), np.int32)
        tokens[0, : len(prompt) + OUT] = [*prompt, *made]
        likeliest = np.asarray(logits(params, tokens)).argmax(axis=-1)
        assert likeliest[len(prompt) - 1 : len(prompt) - 1 + OUT].tolist() == made


def _prompts() -> list[list[int]]:
    """The reference's texts, alone and one after the other, cut to many lengths."""
    cases = json.loads(Path(__file__).with_name("smollm2.json").read_text())["cases"]
    texts = [case["input_ids"] for case in cases]
    joined = [token for text in texts for token in text]
    return [text[: LENGTH - OUT] for text in texts] + [joined[i : i + 5 + 6 * i] for i in range(11)]


def _run(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    made: list[list[int]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=0.0, max_tokens=OUT)
        engine.add_request(Request(request_id=str(i), prompt=tuple(prompt), sampling=sampling))
    while engine.has_work():
        for output in engine.step():
            made[int(output.request_id)].extend(output.token_ids)
    return made
