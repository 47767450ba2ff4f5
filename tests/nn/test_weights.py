from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.conftest import BUCKET
from tests.fakes.gcs_process import GcsService
from tests.fakes.model_folders import CONFIG, SPEC, llama_tensors, write_model
from tests.fakes.tensor_files import write_shards, write_tensors
from tpuctl.errors import WeightsError
from tpuctl.mesh import create_mesh
from tpuctl.model_folder import read_config
from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.nn.params import init_params, param_shardings
from tpuctl.nn.weights import Loaded, load_params
from tpuctl.plan.schema import MeshPlan

UNTIED = CONFIG | {"tie_word_embeddings": False}


def load(folder: Path | str, *, spec: ModelSpec = SPEC, dtype: Any = np.float32, tensor: int = 2) -> Loaded:
    mesh = create_mesh(MeshPlan(slice=1, data=1, fsdp=8 // tensor, expert=1, tensor=tensor))
    shardings = param_shardings(spec, mesh)
    return load_params(spec, str(folder), family="llama", shardings=shardings, dtype=dtype)


def test_folder_becomes_the_tree_that_initialisation_makes(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    loaded = load(tmp_path)
    expected = jax.eval_shape(lambda: init_params(SPEC, jax.random.key(0)))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), loaded.params) == jax.tree.map(
        lambda x: (x.shape, x.dtype), expected
    )
    layers = loaded.params["layers"]
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        q, o = (tensors[f"{prefix}self_attn.{name}.weight"] for name in ("q_proj", "o_proj"))
        np.testing.assert_array_equal(layers["attention"]["query"][layer], q.T.reshape(32, 4, 8))
        np.testing.assert_array_equal(layers["attention"]["out"][layer], o.reshape(32, 4, 8))
        np.testing.assert_array_equal(layers["mlp"]["gate"][layer], tensors[f"{prefix}mlp.gate_proj.weight"].T)
        np.testing.assert_array_equal(layers["mlp"]["down"][layer], tensors[f"{prefix}mlp.down_proj.weight"])
    np.testing.assert_array_equal(loaded.params["embedding"], tensors["model.embed_tokens.weight"])
    assert loaded.bytes_read == sum(values.nbytes for values in tensors.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_damaged_byte_of_weights_in_a_bucket_is_noticed(gcs: GcsService, tmp_path: Path, dtype: Any) -> None:
    tensors = write_model(tmp_path, dtype=dtype)
    for path in tmp_path.iterdir():
        gcs.buckets.put(BUCKET, f"model/{path.name}", path.read_bytes(), query={}, metadata={})
    folder = f"gs://{BUCKET}/model"
    assert load(folder).bytes_read == sum(values.nbytes for values in tensors.values())
    for skip in (1, 5, 11):  # after the header
        gcs.serve_well()
        fault = gcs.fail(op="read", name=r"\.safetensors$", skip=skip, corrupt=True)
        with pytest.raises(WeightsError, match=r"model\.safetensors: its bytes arrived damaged"):
            load(folder)
        assert fault.hits == 1


@pytest.mark.parametrize("tensor", [1, 4])
def test_folder_is_the_same_on_every_mesh_though_key_heads_are_shared(tensor: int, tmp_path: Path) -> None:
    write_model(tmp_path)
    expected, found = load(tmp_path), load(tmp_path, tensor=tensor)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found.params), jax.device_get(expected.params))


def test_shards_hold_what_one_file_does(tmp_path: Path) -> None:
    tensors = write_model(tmp_path / "one")
    (tmp_path / "two").mkdir()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    write_shards(tmp_path / "two", {file: {name: tensors[name] for name in part} for file, part in parts.items()})
    one, two = load(tmp_path / "one"), load(tmp_path / "two")
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), one.params, two.params))


def test_untied_head_is_loaded_and_a_tied_one_left_out(tmp_path: Path) -> None:
    tensors = write_model(tmp_path, config=UNTIED)
    untied = load(
        tmp_path, spec=ModelSpec(**{**{f: getattr(SPEC, f) for f in SPEC.__slots__}, "tied_embedding": False})
    )
    np.testing.assert_array_equal(untied.params["head"], tensors["lm_head.weight"].T)
    assert "head" not in load(tmp_path).params


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (
            {"model.layers.1.self_attn.q_proj.weight": None},
            ["1 tensor missing: model.layers.1.self_attn.q_proj.weight"],
        ),
        (
            {"model.layers.1.self_attn.q_proj.weight": None, "model.layers.1.self_attn.query.weight": (32, 32)},
            [
                "missing: model.layers.1.self_attn.q_proj",
                "not of this model: model.layers.1.self_attn.query.weight",
            ],
        ),
        ({"model.layers.3.mlp.up_proj.weight": (48, 32)}, ["1 tensor not of this model: model.layers.3.mlp.up_proj"]),
        (
            {"model.norm.weight": (31,), "model.embed_tokens.weight": (300, 32)},
            ["2 tensors of another shape", "model.norm.weight F32[31] (model.safetensors), not [32]"],
        ),
        ({"norm.weight": (32,)}, ["there under two names: norm.weight and model.norm.weight"]),
    ],
)
def test_tensors_that_do_not_fit_are_one_error_that_names_them(
    change: dict[str, tuple[int, ...] | None], messages: list[str], tmp_path: Path
) -> None:
    tensors = write_model(tmp_path)
    for name, shape in change.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = np.zeros(shape, np.float32)
    write_tensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(WeightsError) as caught:
        load(tmp_path)
    assert str(tmp_path) in caught.value.message
    for message in messages:
        assert message in caught.value.message


def test_integer_weights_are_refused_as_quantised(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    write_tensors(tmp_path / "model.safetensors", tensors | {name: np.zeros((48, 32), np.int8)})
    with pytest.raises(WeightsError, match=rf"{name} I8\[48,32\]") as caught:
        load(tmp_path)
    assert caught.value.hint is not None
    assert "quantised" in caught.value.hint


@pytest.mark.parametrize("prefix", ["", "language_model.model.", "model.language_model."])
def test_known_prefixes_of_names_are_seen_through(prefix: str, tmp_path: Path) -> None:
    tensors = llama_tensors()
    renamed = {prefix + name.removeprefix("model."): values for name, values in tensors.items()}
    beside = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, np.float32)}
    write_tensors(tmp_path / "model.safetensors", renamed | beside)
    np.testing.assert_array_equal(load(tmp_path).params["final_norm"]["scale"], tensors["model.norm.weight"])


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_experts_are_read_by_the_devices_that_hold_them(name: str) -> None:
    folder = Path(__file__).parent / "references" / name
    config = read_config(str(folder))
    spec, family = spec_from_config(config), str(config["model_type"])

    def loaded(**axes: int) -> Loaded:
        mesh = create_mesh(MeshPlan(**{"slice": 1, "data": 1, "fsdp": 1, "expert": 1, "tensor": 1} | axes))
        shardings = param_shardings(spec, mesh)
        return load_params(spec, str(folder), family=family, shardings=shardings, dtype=np.float32)

    whole, dealt = loaded(fsdp=8), loaded(fsdp=2, expert=2, tensor=2)
    jax.tree.map(np.testing.assert_array_equal, dealt.params, whole.params)
    assert dealt.bytes_read == whole.bytes_read
    gate = dealt.params["layers"]["experts"]["gate"]
    layers, experts, hidden, inner = gate.shape
    assert {shard.data.shape for shard in gate.addressable_shards} == {(layers, experts // 2, hidden // 2, inner // 2)}
