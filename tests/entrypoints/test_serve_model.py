"""The weights of an endpoint where its recipe asks for int8: those of a folder, and random ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fakes.model_folders import CONFIG, SPEC, write_model
from tests.fakes.tiny_engine import tensor_mesh
from tpuctl.engine.adapters import NONE
from tpuctl.engine.options import EngineOptions
from tpuctl.entrypoints.parity import plain_forward
from tpuctl.entrypoints.serve_model import _drawn, ready_runner
from tpuctl.nn.params import init_params, param_shardings
from tpuctl.nn.quantised import dequantised_tree, quantised_tree
from tpuctl.nn.weights import load_params
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import ServingPlan
from tpuctl.plan.source import read_source
from tpuctl.recipe.load import Source, build_recipe

WIDE = {"num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 64, "tie_word_embeddings": False}
WIDE_SPEC = replace(SPEC, num_heads=8, num_kv_heads=8, mlp_size=64, tied_embedding=False)


def served(cwd: Path, *, topology: str, **model: str) -> ServingPlan:
    tables: dict[str, Any] = {
        "kind": "serve",
        "slice": {"accelerator": "v5e", "topology": topology},
        "model": model,
        "engine": {"dtype": "float32", "weights": "int8"},
    }
    recipe = build_recipe(Source(file="r.toml", values=tables, lines={}))
    plan = resolve(recipe, environ={}, cwd=cwd, source=read_source(recipe, environ={}, cwd=cwd))
    assert isinstance(plan, ServingPlan)
    return plan


def test_int8_weights_of_a_folder_are_on_all_devices_and_checked_against_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))  # left to the host, which is these tests
    write_model(tmp_path, config=CONFIG | WIDE)
    plan = served(tmp_path, topology="2x4", source=str(tmp_path), tokenizer="bytes")
    options = EngineOptions(max_length=32, num_pages=4, page_size=8, max_running=8, max_step_tokens=8)
    told: list[str] = []
    runner, forward = ready_runner(plan, options, simulated=True, tell=lambda phase, **_: told.append(phase))
    assert told == ["weights"]
    gate = runner._params["layers"]["mlp"]["gate"]
    assert (gate.values.dtype, gate.values.addressable_shards[0].data.shape) == (jnp.int8, (3, 32, 8))
    one = tensor_mesh()
    plain = load_params(
        WIDE_SPEC, str(tmp_path), family="llama", shardings=param_shardings(WIDE_SPEC, one), dtype=np.float32
    ).params
    tokens = np.arange(12, dtype=np.int32)
    exact = plain_forward(WIDE_SPEC, dequantised_tree(quantised_tree(plain), dtype=jnp.float32))(tokens, NONE)
    np.testing.assert_allclose(forward(tokens, NONE), exact, rtol=1e-4, atol=1e-5)
    assert np.abs(exact - plain_forward(WIDE_SPEC, plain)(tokens, NONE)).max() > 1e-3, "nothing was rounded"


@pytest.mark.slow
def test_int8_weights_drawn_at_random_are_those_of_the_seed(tmp_path: Path) -> None:
    plan = served(tmp_path, topology="1x1", preset="tiny-1m")
    shardings = param_shardings(plan.model, tensor_mesh(), quantised="int8")
    found = _drawn(plan, shardings, jnp.dtype(jnp.float32))
    expected = quantised_tree(init_params(plan.model, jax.random.key(plan.engine.seed)))
    assert found["layers"]["mlp"]["up"].values.dtype == jnp.int8
    off = jax.tree.map(lambda a, b: np.abs(np.subtract(a, b, dtype=np.float32)).max(), found, expected)
    # Compiled together the draws may differ in the last bit, and a value on the edge of two steps falls to the other.
    assert max(jax.tree.leaves(off["layers"]["mlp"]["up"].values)) <= 1
    assert off["layers"]["mlp"]["up"].scale < 1e-6
