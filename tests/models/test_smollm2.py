"""The real model, loaded and run by us, against what transformers made of it."""

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
from tpuctl.mesh import create_mesh
from tpuctl.model_folder import read_config
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.nn.decoder import TokenRows
from tpuctl.nn.params import bind, param_shardings
from tpuctl.nn.weights import load_params
from tpuctl.plan.schema import MeshPlan

MODEL = os.environ.get("TPUCTL_TEST_MODEL", "")
REFERENCE = json.loads(Path(__file__).with_name("smollm2.json").read_text())
# The longest case, prompt and answer.
LENGTH = 128
# Both in float32, in another order of sums; logits are around 20.
TOLERANCE = 1e-3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL, reason="TPUCTL_TEST_MODEL is not set; builtin:smollm2-135m is fetched"),
]


@pytest.fixture(scope="module")
def model_logits() -> Any:
    """The logits at all positions of a row of ids; the weights come through a mesh of eight devices."""
    folder = model_folder(MODEL)
    spec = spec_from_config(read_config(folder))
    mesh = create_mesh(MeshPlan(slice=1, data=1, fsdp=8, expert=1, tensor=1))
    shardings = param_shardings(spec, mesh)
    loaded = load_params(spec, folder, family="llama", shardings=shardings, dtype=jnp.float32)
    params = jax.device_put(loaded.params, jax.devices()[0])

    @jax.jit
    def logits(params: Any, ids: Any) -> Any:
        positions = jnp.arange(ids.shape[1])[None]
        rows = TokenRows(tokens=ids, positions=positions, segment_ids=jnp.ones_like(positions))
        return bind(spec, params).logits(rows)[0]

    return lambda ids: logits(params, np.asarray(ids, np.int32)[None])


@pytest.fixture(scope="module")
def next_logits(model_logits: Any) -> Any:
    """Logits of the token after some ids."""

    def of(ids: list[int]) -> np.ndarray:
        return np.asarray(model_logits(ids + [0] * (LENGTH - len(ids)))[len(ids) - 1])

    return of


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda case: f"{len(case['input_ids'])} ids")
def test_real_model_gives_the_logits_and_the_text_that_transformers_does(case: dict[str, Any], next_logits) -> None:
    found = next_logits(case["input_ids"])
    best = np.argsort(found)[::-1][:5]
    assert best.tolist() == case["top5_ids"]
    np.testing.assert_allclose(found[best], case["top5_logits"], atol=TOLERANCE)
    ids = list(case["input_ids"])
    for wanted in case["greedy_ids"]:
        ids.append(int(np.argmax(next_logits(ids))))
        assert ids[-1] == wanted


def test_real_model_has_the_loss_on_text_that_transformers_finds(model_logits) -> None:
    ids = np.asarray(REFERENCE["text"]["input_ids"])
    found = jax.nn.log_softmax(model_logits(ids))[np.arange(len(ids) - 1), ids[1:]]
    assert -float(found.mean()) == pytest.approx(REFERENCE["text"]["loss"], abs=1e-4)


def test_config_of_the_real_model_is_the_one_its_preset_is_held_to() -> None:
    kept = json.loads(Path(__file__).with_name("smollm2.config.json").read_text())
    assert read_config(model_folder(MODEL)) == kept
