"""Weights as int8 with a scale for each output channel: how far they are off, what they weigh, how they multiply."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import BUCKET
from tests.fakes.gcs_process import GcsService
from tests.fakes.model_folders import CONFIG, write_model
from tests.fakes.model_folders import SPEC as FOLDER_SPEC
from tests.fakes.tiny_engine import SPEC, naive_logits, tensor_mesh
from tpuctl.modelspec import PRESETS, ModelSpec, num_parameters
from tpuctl.modelspec.quantised import largest_quantised, summed_axes, weight_bytes
from tpuctl.nn.layers import project, project_back
from tpuctl.nn.params import init_params, param_shapes, param_shardings
from tpuctl.nn.quantised import Quantised, dequantised_tree, is_quantised, quantise, quantised_tree
from tpuctl.nn.transposed import Transposed
from tpuctl.nn.weights import load_params
from tpuctl.nn.weights_reading import Reader

UNTIED = replace(SPEC, tied_embedding=False)


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("summed", [(0,), (1, 2)])
def test_no_weight_is_off_by_more_than_half_a_step_of_its_channel(summed: tuple[int, ...]) -> None:
    # Channels of very different sizes, one of zeros.
    sizes = jnp.logspace(-20, 4, 24).reshape(1, 4, 6) if summed == (0,) else jnp.logspace(-20, 4, 32).reshape(32, 1, 1)
    weight = (normal(0, 32, 4, 6) * sizes).at[5].set(0.0).at[:, 1, 1].set(0.0)
    found = quantise(weight, summed=summed)
    assert found.values.dtype == jnp.int8
    assert found.scale.shape == tuple(1 if at in summed else size for at, size in enumerate(weight.shape))
    half_step = np.max(np.abs(weight), axis=summed, keepdims=True) / 254
    off = np.abs(np.asarray(found.values * found.scale, np.float64) - weight)
    assert (off <= half_step * (1 + 1e-5)).all()
    assert int(jnp.abs(jnp.asarray(found.values, jnp.int32)).max()) == 127


@pytest.mark.parametrize(
    "spec",
    [SPEC, UNTIED, replace(SPEC, qkv_bias=True, mlp_bias=True, norm="layer", mlp_gated=False, positions="learned")],
    ids=["tied", "untied", "biases"],
)
def test_bytes_of_a_plan_are_those_of_the_tree(spec: ModelSpec) -> None:
    spec = replace(spec, max_positions=96)
    shapes = param_shapes(spec, quantised="int8")
    plain = [leaf for leaf in jax.tree.leaves(shapes, is_leaf=is_quantised) if not is_quantised(leaf)]
    kept = [leaf for leaf in jax.tree.leaves(shapes, is_leaf=is_quantised) if is_quantised(leaf)]
    assert len(kept) == 4 + 2 + spec.mlp_gated + (not spec.tied_embedding)
    total = sum(leaf.size * 2 for leaf in plain) + sum(leaf.values.size + leaf.scale.size * 4 for leaf in kept)
    assert weight_bytes(spec, item_bytes=2, quantised=True) == total
    assert weight_bytes(spec, item_bytes=2, quantised=False) == 2 * num_parameters(spec)
    assert largest_quantised(spec) == max(leaf.values.size for leaf in kept)


def test_large_models_weigh_about_half() -> None:
    halves = {
        name: weight_bytes(PRESETS[name], item_bytes=2, quantised=True) / (2 * num_parameters(PRESETS[name]))
        for name in ("qwen3-4b", "llama3-8b")
    }
    # What stays are the embeddings: a tenth of the one, which has no other head, and a fifteenth of the other.
    assert halves == pytest.approx({"qwen3-4b": 0.549, "llama3-8b": 0.533}, abs=0.002)


def test_products_are_those_of_the_values_times_the_scale() -> None:
    x, inside = normal(1, 2, 5, 32), normal(2, 2, 5, 4, 8)
    into, back = quantise(normal(3, 32, 4, 8), summed=(0,)), quantise(normal(4, 32, 4, 8), summed=(1, 2))
    plain = dequantised_tree({"into": into, "back": back}, dtype=jnp.float32)
    np.testing.assert_allclose(project(x, into), project(x, plain["into"]), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(project_back(inside, back), project_back(inside, plain["back"]), rtol=1e-5, atol=1e-4)
    turned = Transposed(matrix=into.values.reshape(32, -1).T, outside=(4, 8))
    kept = Quantised(values=turned, scale=into.scale)
    np.testing.assert_allclose(project(x, kept), project(x, into), rtol=1e-5, atol=1e-4)
    low = project(x.astype(jnp.bfloat16), into)
    assert low.dtype == jnp.bfloat16
    # Three roundings to eight bits: of x, of the product, of what comes out.
    np.testing.assert_allclose(low.astype(jnp.float32), project(x, into), rtol=2e-2, atol=0.15)


@pytest.mark.slow
def test_logits_are_close_to_those_of_the_weights_themselves() -> None:
    tokens = np.random.default_rng(0).integers(0, UNTIED.vocab_size, 96).tolist()
    params = init_params(UNTIED, jax.random.key(5))
    params["head"] *= 20.0  # logits as far apart as a trained model's
    exact = jax.nn.log_softmax(naive_logits(tokens, UNTIED, params=params))
    found = jax.nn.log_softmax(naive_logits(tokens, UNTIED, params=quantised_tree(params)))
    divergence = np.asarray(jnp.sum(jnp.exp(exact) * (exact - found), axis=-1))
    entropy = -float(jnp.mean(jnp.sum(jnp.exp(exact) * exact, axis=-1)))
    print(f"KL mean {divergence.mean():.2e}, most {divergence.max():.2e}, entropy {entropy:.2f}")
    assert 0 < divergence.mean() < 1e-3


def test_folder_is_quantised_as_it_is_loaded_with_no_more_than_one_plain_matrix_at_a_time(
    gcs: GcsService, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, config=CONFIG | {"tie_word_embeddings": False})
    for path in tmp_path.iterdir():
        gcs.buckets.put(BUCKET, f"model/{path.name}", path.read_bytes(), query={}, metadata={})
    spec, mesh = replace(FOLDER_SPEC, tied_embedding=False), tensor_mesh(tensor=2)
    plain = load_params(
        spec, str(tmp_path), family="llama", shardings=param_shardings(spec, mesh), dtype=np.float32
    ).params
    expected = jax.device_get(jax.jit(quantised_tree)(plain))
    shardings = param_shardings(spec, mesh, quantised="int8")
    held = weight_bytes(spec, item_bytes=4, quantised=True)
    for folder in (str(tmp_path), f"gs://{BUCKET}/model"):
        before, peaks = _alive(), []
        read = Reader.read

        def watched(*arguments: Any, read: Any = read, before: int = before, peaks: list[int] = peaks) -> Any:
            array = read(*arguments)
            peaks.append(_alive() - before)
            return array

        monkeypatch.setattr(Reader, "read", watched)
        found = load_params(spec, folder, family="llama", shardings=shardings, dtype=np.float32).params
        monkeypatch.setattr(Reader, "read", read)
        assert max(peaks) <= held + largest_quantised(spec) * 4 < num_parameters(spec) * 4
        assert jax.tree.map(lambda leaf: leaf.sharding, found) == shardings
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), expected)


def test_key_and_value_scales_follow_their_heads_and_sums_over_devices_have_one() -> None:
    shardings = param_shardings(SPEC, tensor_mesh(tensor=2), quantised="int8")["layers"]
    specs = {name: kept.scale.spec for name, kept in shardings["attention"].items()}
    assert specs["key"] == jax.sharding.PartitionSpec(None, None, ("tensor",), None)
    assert specs["out"] == jax.sharding.PartitionSpec(None, ("fsdp", "expert", "data"), None, None)
    assert shardings["mlp"]["down"].scale.spec[2] is None
    assert shardings["mlp"]["up"].scale.spec[2] == "tensor"


def test_what_is_looked_up_or_decides_is_left_alone() -> None:
    for path in ("embedding", "final_norm/scale", "layers/attention/query_bias", "layers/experts/router"):
        assert summed_axes(path) is None


def _alive() -> int:
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in jax.live_arrays())
