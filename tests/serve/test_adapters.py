"""A recipe with adapters, served, and the official client: each name says what the model it stands for would say."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import openai
import pytest

from tests.fakes.adapter_folders import LORAS, write_adapter_folder, write_merged
from tests.fakes.model_folders import SPEC, write_model
from tests.serve.serve_here import served_here
from tpuctl.entrypoints.parity import plain_forward
from tpuctl.mesh import create_mesh
from tpuctl.nn.params import param_shardings
from tpuctl.nn.weights import load_params
from tpuctl.plan.schema import MeshPlan

NAMES = ("tiny", *LORAS)
PROMPTS = ("Once upon a time", "The sea is", "7 times 8")
TOKENS = 12
LENGTH = 64
# Tokens are bytes, and of these only such that each is a character.
ASCII = 128

# Two endpoints start and compile, on one device and on four.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    write_model(root / "tiny")
    for name in LORAS:
        write_merged(root / "merged" / name, write_adapter_folder(root / name, name))
    return root


@pytest.fixture(scope="module", params=["1x1", "2x2"])
def client(request: pytest.FixtureRequest, folders: Path) -> Iterator[openai.OpenAI]:
    overrides = [f"serve.adapters.{name}={folders / name}" for name in LORAS]
    source = ("model.preset=unset", f"model.source={folders / 'tiny'}", "model.tokenizer=bytes")
    sizes = (f"engine.max_length={LENGTH}", "serve.name=tiny", f"run.directory={folders / request.param}")
    with served_here(
        "serve-smoke.toml", *source, *overrides, *sizes, f"slice.topology={request.param}", cwd=folders
    ) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def expected(folders: Path) -> dict[tuple[str, str], str]:
    """Greedy texts by the plain forward pass of each merged model."""
    alone = MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=1)
    places = param_shardings(SPEC, create_mesh(alone, devices=jax.devices()[:1]))
    texts = {}
    for name in NAMES:
        folder = folders / (name if name == "tiny" else f"merged/{name}")
        params = load_params(SPEC, str(folder), family="llama", shardings=places, dtype=jnp.float32).params
        forward = plain_forward(SPEC, params)
        for prompt in PROMPTS:
            tokens = list(prompt.encode())
            for _ in range(TOKENS):
                padded = np.asarray(tokens + [0] * (LENGTH - len(tokens)), np.int32)
                tokens.append(int(forward(padded, 0).logits[len(tokens) - 1, :ASCII].argmax()))
            texts[name, prompt] = bytes(tokens[len(prompt) :]).decode()
    return texts


def text(client: openai.OpenAI, name: str, prompt: str) -> str:
    forbidden = {str(token): -100 for token in range(ASCII, 257)}
    answer = client.completions.create(
        model=name, prompt=prompt, max_tokens=TOKENS, temperature=0, logit_bias=forbidden
    )
    assert answer.model == name
    return answer.choices[0].text


def test_each_name_says_what_its_merged_model_says_alone_and_among_the_others(
    client: openai.OpenAI, expected: dict[tuple[str, str], str]
) -> None:
    asked = [(name, prompt) for prompt in PROMPTS for name in NAMES]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda pair: text(client, *pair), asked))
    assert dict(zip(asked, together, strict=True)) == expected
    assert [text(client, *pair) for pair in asked] == together
    assert len({text_ for (_, prompt), text_ in zip(asked, together, strict=True) if prompt == PROMPTS[0]}) == 3


def test_names_are_listed_with_what_they_stand_for(client: openai.OpenAI, folders: Path) -> None:
    told = {model.id: model.to_dict() for model in client.models.list()}
    assert tuple(told) == NAMES
    assert [(told[name]["parent"], told[name]["root"]) for name in LORAS] == [
        ("tiny", str(folders / name)) for name in LORAS
    ]
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nobody", prompt="x")
    assert missing.value.code == "model_not_found"
