"""Matrices of int8: the error of each number, their layout, and the products on accelerators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops.int8_products import quantize
from transformer_jax.ops.matmul import _int8_product, matmul
from transformer_jax.ops.matrices import Int8Matrix, reshaped

W = np.asarray(jax.random.normal(jax.random.key(0), (24, 42))) * np.geomspace(1e-3, 1e3, 42)


def exact(matrix):
    values = np.asarray(matrix.values, np.float64)[: len(matrix.scale)]
    return values * np.asarray(matrix.scale, np.float64)


@pytest.mark.parametrize("contracted", [0, 1])
def test_each_number_is_within_half_a_scale(contracted):
    matrix = jax.jit(quantize, static_argnums=1)(W, contracted)
    turned = W if contracted else W.T  # [out, in]
    assert matrix.values.dtype == jnp.int8
    assert matrix.values.shape == (64 if contracted else 42, turned.shape[1])
    assert matrix.T is matrix and matrix.shape == turned.shape[::-1]
    largest = np.abs(turned).max(axis=1, keepdims=True)
    np.testing.assert_allclose(matrix.scale, largest / 127, rtol=1e-6)
    error = np.abs(exact(matrix) - turned)
    assert (error <= np.asarray(matrix.scale) / 2 * (1 + 1e-5)).all()
    assert error.max() > 0
    largest = np.abs(matrix.values).max(axis=1)
    assert largest[: len(turned)].min() == 127  # every scale is used in full
    assert not largest[len(turned) :].any()


@pytest.mark.parametrize("largest", [0.0, 1e-45])
def test_a_column_of_zeros_stays_zero(largest):
    matrix = quantize(jnp.asarray(W, jnp.float32).at[:, 1].set(largest), 0)
    assert np.isfinite(matrix.scale).all()
    np.testing.assert_allclose(exact(matrix)[1], largest, atol=1e-44)


def test_not_a_number_does_not_vanish():
    matrix = quantize(jnp.asarray(W, jnp.float32).at[3, 1].set(jnp.nan), 0)
    y = matmul(jnp.ones((2, 24)), matrix, jnp.float32)
    assert np.isnan(y[:, 1]).all() and np.isfinite(np.delete(y, 1, axis=1)).all()


@pytest.mark.parametrize(("inputs", "outputs"), [((24,), (42,)), ((24,), (6, 7)), ((4, 6), (42,))])
def test_where_only_the_matrix_is_of_int8(inputs, outputs):
    """The activations are not rounded to whole numbers."""
    w = reshaped(quantize(jnp.asarray(W), 0), inputs, outputs)
    x = jax.random.normal(jax.random.key(1), (3, 5, *inputs))
    bias = jax.random.normal(jax.random.key(2), outputs)
    flat, matrix = np.asarray(x, np.float64).reshape(3, 5, 24), exact(quantize(jnp.asarray(W), 0)).T
    want = (flat @ matrix).reshape(3, 5, *outputs) + np.asarray(bias)
    magnitude = (np.abs(flat) @ np.abs(matrix)).reshape(want.shape)
    y = _int8_product(len(inputs), jnp.float32, x, w, bias, "floats")
    assert (np.abs(y - want) <= 1e-6 * magnitude + 1e-6).all()


@pytest.mark.parametrize("form", ["flat", "kept", "floats"])
def test_the_zeros_below_a_table_are_no_pieces(form):
    table = quantize(jnp.asarray(W), 1)
    x = jnp.asarray(np.random.default_rng(0).integers(-127, 128, (2, 3, 42)), jnp.float32)
    y = _int8_product(1, jnp.float32, x.at[..., 0].set(127), table, None, form)
    want = np.asarray(x.at[..., 0].set(127), np.float64) @ exact(table).T
    assert y.shape == (2, 3, 24)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_elsewhere_the_scale_multiplies_the_sums(platform):
    """Only then XLA reads the matrix as int8: a conversion alone is fused with the product."""
    x = jax.ShapeDtypeStruct((3, 24), jnp.float32)
    w = jax.eval_shape(lambda: quantize(jnp.asarray(W), 0))
    assert isinstance(w, Int8Matrix)
    lowered = jax.jit(lambda x, w: matmul(x, w, jnp.bfloat16)).trace(x, w)
    text = lowered.lower(lowering_platforms=(platform,)).as_text()
    multiplied = [line for line in text.splitlines() if "stablehlo.multiply" in line]
    assert "dot_general" in text and "while" not in text
    assert len(multiplied) == 1 and "tensor<3x42xf32>" in multiplied[0]
