"""Every family against transformers: models of random weights, whose logits ``references/make.py`` computed there."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tpuctl.mesh import RULES, create_mesh, named_sharding
from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.nn.decoder import ForwardOptions, TokenRows
from tpuctl.nn.naming import stored_parameters
from tpuctl.nn.params import ParamTree, bind, logical_axes
from tpuctl.nn.partition import Partition
from tpuctl.plan.schema import MeshPlan

REFERENCES = Path(__file__).parent / "references"
FAMILIES = sorted(path.parent.name for path in REFERENCES.glob("*/logits.npz"))
ALONE: dict[str, int] = {}
SPLIT = ("llama_biases", "gemma2", "gpt2", "qwen3_moe")
WIDEST = {"fsdp": 2, "tensor": 4}
DEALT = {"fsdp": 2, "expert": 2, "tensor": 2}
# Compiled once and run once: optimizing would take longer than it saves.
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def read_json(name: str, file: str = "config.json") -> dict[str, Any]:
    document: dict[str, Any] = json.loads((REFERENCES / name / file).read_text())
    return document


def read_tensors(name: str) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file in bfloat16."""
    data = (REFERENCES / name / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {
        key: np.frombuffer(data[start:][slice(*entry["data_offsets"])], ml_dtypes.bfloat16).reshape(entry["shape"])
        for key, entry in header.items()
    }


@functools.cache
def reference(name: str) -> tuple[ModelSpec, ParamTree, np.ndarray, np.ndarray]:
    """Spec, parameters in f32, tokens and the expected logits."""
    config = read_json(name)
    spec, tensors = spec_from_config(config), read_tensors(name)
    params: ParamTree = {}
    for path, stored in stored_parameters(spec, config["model_type"]).items():
        *parents, leaf = path.split("/")
        node = functools.reduce(lambda tree, key: tree.setdefault(key, {}), parents, params)
        node[leaf] = stacked({index: whole(stored, tensors[key]) for index, key in stored.tensors()})
    with np.load(REFERENCES / name / "logits.npz") as arrays:
        return spec, params, arrays["tokens"], arrays["logits"]


def whole(stored: Any, tensor: np.ndarray) -> np.ndarray:
    box = stored.box(tuple(slice(0, size) for size in stored.shape))
    return stored.to_ours(tensor[box].astype(np.float32))


def stacked(pieces: dict[tuple[int, ...], np.ndarray]) -> np.ndarray:
    leading = tuple(size + 1 for size in max(pieces))
    array = np.empty((*leading, *next(iter(pieces.values())).shape), np.float32)
    for index, piece in pieces.items():
        array[index] = piece
    return array


def rows_of(tokens: np.ndarray) -> TokenRows:
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    return TokenRows(tokens=tokens, positions=positions, segment_ids=np.ones(tokens.shape, np.int32))


def logits_on_a_mesh(spec: ModelSpec, params: ParamTree, tokens: np.ndarray, **axes: int) -> np.ndarray:
    """Logits with weights and tokens split over virtual devices, as in training."""
    plan = MeshPlan(**{"slice": 1, "data": 1, "fsdp": 1, "expert": 1, "tensor": 1} | axes)
    mesh = create_mesh(plan, devices=jax.devices()[: plan.fsdp * plan.expert * plan.tensor])
    logical = logical_axes(spec, tensor=plan.tensor)
    leaf = {"is_leaf": lambda node: isinstance(node, tuple)}
    placed = jax.tree.map(
        lambda names, value: jax.device_put(value, named_sharding(mesh, names, shape=value.shape)),
        logical,
        params,
        **leaf,
    )
    part = Partition.of(mesh)

    def local(params: ParamTree, rows: TokenRows) -> jax.Array:
        decoder = bind(spec, params)
        hidden = decoder.hidden(rows, options=ForwardOptions(partition=part))
        return decoder.project_to_vocab(hidden, partition=part)

    specs = jax.tree.map(RULES.spec, logical, **leaf)
    batch = PartitionSpec(RULES.batch)
    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=(specs, batch), out_specs=PartitionSpec(RULES.batch, None, "tensor"), check_vma=False
    )
    # Each device has other rows, the last one those whose logits are known.
    rows = rows_of(np.concatenate([np.roll(tokens, shift, axis=1) for shift in reversed(range(plan.batch_shards))]))
    return np.asarray(jax.jit(mapped, compiler_options=QUICKLY)(placed, rows)[-1:], np.float32)


@pytest.mark.parametrize("name", FAMILIES)
def test_both_spellings_of_a_config_give_the_same_spec(name):
    assert spec_from_config(read_json(name)) == spec_from_config(read_json(name, "config.v4.json"))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_tensor_of_a_checkpoint_is_read_once_and_whole(name):
    spec, tensors = spec_from_config(read_json(name)), read_tensors(name)
    read = dict.fromkeys(tensors, 0)
    for stored in stored_parameters(spec, read_json(name)["model_type"]).values():
        for _, key in stored.tensors():
            read[key] += np.prod(stored.shape)
    assert read == {key: tensor.size for key, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        *((name, ALONE) for name in FAMILIES),
        # What else can be split, and how, these have: shared key heads, biases, soft caps, local layers, experts.
        *((name, WIDEST) for name in SPLIT),
        ("qwen3_moe", DEALT),
        pytest.param("mixtral", DEALT, marks=pytest.mark.slow),
        *(pytest.param(name, WIDEST, marks=pytest.mark.slow) for name in FAMILIES if name not in SPLIT),
        *(pytest.param(name, {"tensor": 2}, marks=pytest.mark.slow) for name in FAMILIES),
    ],
    ids=str,
)
def test_logits_equal_those_of_transformers(name, axes, record_property):
    spec, params, tokens, expected = reference(name)
    got = logits_on_a_mesh(spec, params, tokens, **axes)
    record_property("max_difference", float(np.abs(got - expected).max()))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_probabilities_in_bfloat16_are_close_to_those_of_transformers_in_float32(name, record_property):
    spec, params, tokens, expected = reference(name)
    low = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params)
    got = jax.nn.log_softmax(logits_on_a_mesh(spec, low, tokens), axis=-1)
    wanted = jax.nn.log_softmax(expected, axis=-1)
    by_token = np.sort((np.exp(wanted) * (wanted - got)).sum(axis=-1).ravel())
    # Rounding turns a near tie of two experts over, and that token then goes another way altogether; in transformers'
    # own bfloat16 so do 3 of the 128 tokens of qwen3_moe. What all other tokens do can be held to the same bound.
    turned_over = 5 if spec.experts is not None else 0
    divergence = float(by_token[: by_token.size - turned_over].mean())
    record_property("divergence", divergence)
    assert 0 <= divergence < 1e-3
