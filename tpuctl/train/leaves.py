"""A training state as named arrays: the form it has on disk, and how a stored one differs from a wanted one.

A checkpoint holds a flat table of names like ``opt_state/0/mu/layers/mlp/up``. So the types of the state
(Flax states, Optax named tuples) never reach the disk: they come from the fresh state that a restore fills.
Typed PRNG keys are stored as their plain words, beside the name of their type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

# Longer reports help nobody: the first few names of each kind say which change it was.
MAX_DIFFERENCES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafType:
    """Shape and dtype of one array; typed PRNG keys have a dtype such as ``key<fry>``."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by name, in the tree's own order."""
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in pairs}
    assert len(named) == len(pairs), "two leaves of the state have one name"
    return named


def with_leaves(tree: Any, named: Mapping[str, Any]) -> Any:
    """``tree`` with each leaf taken from ``named``; the types of the containers stay those of ``tree``."""
    return jax.tree.unflatten(jax.tree.structure(tree), [named[name] for name in named_leaves(tree)])


def leaf_types(named: Mapping[str, Any]) -> dict[str, LeafType]:
    """Shape and dtype of each named array."""
    return {name: LeafType(shape=tuple(leaf.shape), dtype=str(leaf.dtype)) for name, leaf in named.items()}


def is_key(leaf: Any) -> bool:
    """Whether a leaf holds typed PRNG keys."""
    return bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def stored_form(leaf: Any) -> Any:
    """The array that stands for a leaf on disk: the words of a typed key, anything else itself."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def stored_shape(leaf: Any) -> Any:
    """Shape, dtype and sharding of ``stored_form`` for an abstract leaf."""
    if not is_key(leaf):
        return leaf
    return jax.eval_shape(jax.random.key_data, leaf).update(sharding=leaf.sharding)


def original_form(stored: Any, wanted: Any) -> Any:
    """What ``stored_form`` was made of, as ``wanted`` describes it."""
    if not is_key(wanted):
        return stored
    implementation = _implementation(str(wanted.dtype))
    wrap = jax.jit(lambda words: jax.random.wrap_key_data(words, impl=implementation), out_shardings=wanted.sharding)
    return wrap(stored)


def differences(stored: Mapping[str, LeafType], wanted: Mapping[str, LeafType]) -> list[str]:
    """How a stored table differs from the wanted one, the first few of each kind, in words; empty if they agree."""
    changed = [
        f"{name}: {stored[name]} in the checkpoint, {wanted[name]} wanted"
        for name in wanted
        if name in stored and stored[name] != wanted[name]
    ]
    missing = [f"missing from the checkpoint: {name}" for name in _subtrees(wanted, stored)]
    extra = [f"only in the checkpoint: {name}" for name in _subtrees(stored, wanted)]
    return [text for found in (missing, extra, changed) for text in _first(found)]


def _first(found: list[str]) -> list[str]:
    more = len(found) - MAX_DIFFERENCES
    return found if more <= 0 else [*found[:MAX_DIFFERENCES], f"and {more} more"]


def _subtrees(names: Mapping[str, LeafType], others: Mapping[str, LeafType]) -> list[str]:
    """The highest subtrees of ``names`` of which ``others`` has nothing, each with its number of leaves."""
    known = {prefix for name in others for prefix in _prefixes(name)}
    counts: dict[str, int] = {}
    for name in names:
        if name not in others:
            root = next((prefix for prefix in _prefixes(name) if prefix not in known), name)
            counts[root] = counts.get(root, 0) + 1
    return [root if count == 1 else f"{root} ({count} arrays)" for root, count in counts.items()]


def _prefixes(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _implementation(dtype: str) -> str:
    """The name ``jax.random.wrap_key_data`` takes for a key dtype: ``key<fry>`` is threefry2x32."""
    return {
        "key<fry>": "threefry2x32",
        "key<rbg>": "rbg",
        "key<urbg>": "unsafe_rbg",
    }[dtype]
