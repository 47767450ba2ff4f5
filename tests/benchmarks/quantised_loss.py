"""What int8 weights and fp8 pages cost a real model: loss and divergence on text, beside those that bfloat16 costs.

    python -m tests.benchmarks.quantised_loss builtin:smollm2-135m [--text docs/design/*.md] [--tokens 8192]

All are the plain forward pass over texts cut to rows: with the stored weights in float32, with all in bfloat16, with
int8 weights beside activations of either, and with keys and values as an engine's pages keep them. Divergence is the
mean of KL(stored ‖ other) over all tokens, in nats; agreement is of the likeliest tokens.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.engine.kept import as_kept
from tpuctl.mesh import create_mesh
from tpuctl.model_folder import read_config
from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.nn.decoder import ForwardOptions, TokenRows
from tpuctl.nn.params import ParamTree, bind, param_shardings
from tpuctl.nn.weights import load_params
from tpuctl.plan.schema import MeshPlan
from tpuctl.plan.weights_schema import KvDtype, QuantisedDtype
from tpuctl.text.place import TokenizerRef

ROOT = Path(__file__).parents[2]
LENGTH, ROWS = 512, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Numbers a model is computed with."""

    dtype: Any
    weights: QuantisedDtype | None = None
    kv: KvDtype | None = None


EXACT = Kind(dtype=jnp.float32)
KINDS = {
    "bfloat16": Kind(dtype=jnp.bfloat16),
    "int8 in float32": Kind(dtype=jnp.float32, weights="int8"),
    "int8 in bfloat16": Kind(dtype=jnp.bfloat16, weights="int8"),
    "fp8 pages in float32": Kind(dtype=jnp.float32, kv="fp8"),
    "fp8 pages in bfloat16": Kind(dtype=jnp.bfloat16, kv="fp8"),
    "int8 and fp8 pages in bfloat16": Kind(dtype=jnp.bfloat16, weights="int8", kv="fp8"),
}


def main() -> None:
    """Loads, measures, prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--text", nargs="+", type=Path, default=sorted((ROOT / "docs" / "design").glob("*.md")))
    parser.add_argument("--tokens", type=int, default=8192)
    options = parser.parse_args()
    folder = model_folder(options.model)
    config = read_config(folder)
    spec = spec_from_config(config)
    tokenizer = TokenizerRef(name=folder, directory=folder, vocab_size=spec.vocab_size).load()
    ids = tokenizer.encode("\n\n".join(path.read_text("utf-8") for path in options.text)).ids[: options.tokens]
    batches = np.asarray(ids)[: len(ids) // (LENGTH * ROWS) * LENGTH * ROWS].reshape(-1, ROWS, LENGTH)
    family = str(config["model_type"])
    load = functools.cache(functools.partial(_load, spec, folder, family))
    exact = _Model(spec, load(EXACT.dtype, EXACT.weights), kv=EXACT.kv)
    others = {name: _Model(spec, load(kind.dtype, kind.weights), kv=kind.kv) for name, kind in KINDS.items()}
    sums = {name: np.array(sum(found)) for name, found in _told(exact, others, batches)}
    count = batches.shape[0] * ROWS * (LENGTH - 1)
    loss = sums["stored"][0] / count
    print(f"{count:,} tokens of {len(options.text)} files; the stored weights in float32: loss {loss:.4f}")
    for name in KINDS:
        loss, divergence, agreed = sums[name] / count
        print(f"{name}: loss {loss:.4f}, KL {divergence:.2e}, same likeliest token {agreed:.2%}")


class _Model:
    def __init__(self, spec: ModelSpec, params: ParamTree, *, kv: KvDtype | None) -> None:
        def logits(params: ParamTree, tokens: jax.Array) -> jax.Array:
            positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
            rows = TokenRows(tokens=tokens, positions=positions, segment_ids=jnp.ones_like(tokens))
            decoder, options = bind(spec, params), ForwardOptions()
            attend = as_kept(decoder.row_attention(rows, options=options), kv)
            hidden, _ = decoder.run(tokens, positions, attend=attend, state=(), options=options)
            return jax.nn.log_softmax(decoder.project_to_vocab(hidden).astype(jnp.float32))[:, :-1]

        self._params, self._logits = params, jax.jit(logits)

    def __call__(self, tokens: np.ndarray) -> jax.Array:
        found: jax.Array = self._logits(self._params, tokens)
        return found


@jax.jit
def _compared(exact: jax.Array, other: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    loss = -jnp.take_along_axis(other, targets[..., None], axis=-1).sum()
    divergence = jnp.sum(jnp.exp(exact) * (exact - other))
    return loss, divergence, (exact.argmax(-1) == other.argmax(-1)).sum()


def _told(exact: _Model, others: dict[str, _Model], batches: np.ndarray) -> Iterator[tuple[str, list[np.ndarray]]]:
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("stored", *others)}
    for tokens in batches:
        wanted = exact(tokens)
        for name, other in {"stored": exact, **others}.items():
            found[name].append(np.array(_compared(wanted, other(tokens), tokens[:, 1:]), np.float64))
    return iter(found.items())


def _load(spec: ModelSpec, folder: str, family: str, dtype: Any, quantised: QuantisedDtype | None) -> ParamTree:
    mesh = create_mesh(MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=1), devices=jax.devices()[:1])
    shardings = param_shardings(spec, mesh, quantised=quantised)
    return load_params(spec, folder, family=family, shardings=shardings, dtype=dtype).params


if __name__ == "__main__":
    main()
