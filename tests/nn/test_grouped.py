"""Grouped products: the kernels for TPU, interpreted, and what stands in elsewhere, against a loop over the groups."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuctl.nn.grouped import grouped, grouped_back, outer_sums_kernel, product_kernel

SIZES = np.array([70, 0, 129, 1], np.int32)
INSIDE, OUTSIDE = 160, 96


def rows(width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((int(SIZES.sum()), width), np.float32)


def weights() -> np.ndarray:
    return np.random.default_rng(9).standard_normal((len(SIZES), INSIDE, OUTSIDE), np.float32)


def by_group(x: np.ndarray) -> list[np.ndarray]:
    return np.split(x, np.cumsum(SIZES)[:-1])


def expected_product(x: np.ndarray, transposed: bool) -> np.ndarray:
    return np.concatenate([part @ (w.T if transposed else w) for part, w in zip(by_group(x), weights(), strict=True)])


@pytest.mark.parametrize("transposed", [False, True])
def test_product_kernel_in_interpret_mode_equals_the_definition(transposed):
    x = rows(OUTSIDE if transposed else INSIDE, 0)
    got = product_kernel(jnp.asarray(x), jnp.asarray(weights()), SIZES, transposed=transposed, interpret=True)
    np.testing.assert_allclose(got, expected_product(x, transposed), atol=1e-4)


def test_outer_sums_kernel_in_interpret_mode_equals_the_definition():
    x, y = rows(INSIDE, 0), rows(OUTSIDE, 1)
    got = outer_sums_kernel(jnp.asarray(x), jnp.asarray(y), jnp.asarray(SIZES), interpret=True)
    want = np.stack([a.T @ b for a, b in zip(by_group(x), by_group(y), strict=True)])
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize(("product", "transposed"), [(grouped, False), (grouped_back, True)])
def test_products_and_their_gradients_equal_the_definition(product, transposed):
    x = rows(OUTSIDE if transposed else INSIDE, 0)
    cotangent = rows(INSIDE if transposed else OUTSIDE, 1)
    out, pull = jax.vjp(lambda x, w: product(x, w, jnp.asarray(SIZES)), jnp.asarray(x), jnp.asarray(weights()))
    np.testing.assert_allclose(out, expected_product(x, transposed), atol=1e-4)
    d_x, d_weights = pull(jnp.asarray(cotangent))
    np.testing.assert_allclose(d_x, expected_product(cotangent, not transposed), atol=1e-4)
    pairs = zip(by_group(cotangent if transposed else x), by_group(x if transposed else cotangent), strict=True)
    np.testing.assert_allclose(d_weights, np.stack([a.T @ b for a, b in pairs]), atol=1e-4)
