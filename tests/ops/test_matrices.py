"""Matrices of int8: the error of each number, and products against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops import matmul as forms
from transformer_jax.ops.matmul import matmul
from transformer_jax.ops.matrices import Int8Matrix, quantize, reshaped, rows

W = np.asarray(jax.random.normal(jax.random.key(0), (24, 42))) * np.geomspace(1e-3, 1e3, 42)


def exact(matrix):
    return np.asarray(matrix.values, np.float64) * np.asarray(matrix.scale, np.float64)


@pytest.mark.parametrize("contracted", [0, 1])
def test_each_number_is_within_half_a_scale(contracted):
    matrix = jax.jit(quantize, static_argnums=1)(W, contracted)
    assert matrix.values.dtype == jnp.int8 and matrix.shape == W.shape
    largest = np.abs(W).max(axis=contracted, keepdims=True)
    np.testing.assert_allclose(matrix.scale, largest / 127, rtol=1e-6)
    error = np.abs(exact(matrix) - W)
    assert (error <= np.asarray(matrix.scale) / 2 * (1 + 1e-5)).all()
    assert error.max() > 0
    assert np.abs(matrix.values).max(axis=contracted).min() == 127  # every scale is used in full


def test_symmetric_and_idempotent():
    matrix = quantize(jnp.asarray(W), 0)
    np.testing.assert_array_equal(quantize(jnp.asarray(-W), 0).values, -matrix.values)
    assert quantize(matrix, 0) is matrix
    again = quantize(matrix.values * matrix.scale, 0)
    np.testing.assert_array_equal(again.values, matrix.values)


@pytest.mark.parametrize("largest", [0.0, 1e-45])
def test_a_column_of_zeros_stays_zero(largest):
    matrix = quantize(jnp.asarray(W, jnp.float32).at[:, 1].set(largest), 0)
    assert np.isfinite(matrix.scale).all()
    np.testing.assert_allclose(exact(matrix)[:, 1], largest, atol=1e-44)


def test_not_a_number_does_not_vanish():
    matrix = quantize(jnp.asarray(W, jnp.float32).at[3, 1].set(jnp.nan), 0)
    y = matmul(jnp.ones((2, 24)), matrix, jnp.float32)
    assert np.isnan(y[:, 1]).all() and np.isfinite(np.delete(y, 1, axis=1)).all()


# To heads and from them; the blocks of a product: one, some that are equal, some that overlap.
@pytest.mark.parametrize("block", [1 << 15, 24 * 14, 24 * 5, 1])
@pytest.mark.parametrize(("inputs", "outputs"), [((24,), (42,)), ((24,), (6, 7)), ((4, 6), (42,))])
def test_products(monkeypatch, block, inputs, outputs):
    monkeypatch.setattr(forms, "_BLOCK", block)
    matrix = quantize(jnp.asarray(W), 0)
    x = jax.random.normal(jax.random.key(1), (3, 5, *inputs))
    bias = jax.random.normal(jax.random.key(2), outputs)
    flat = np.asarray(x, np.float64).reshape(3, 5, 24)
    want = (flat @ exact(matrix)).reshape(3, 5, *outputs) + np.asarray(bias)
    w = reshaped(matrix, inputs, outputs)
    y = jax.jit(lambda x: matmul(x, w, jnp.float32, len(inputs), bias=bias))(x)
    magnitude = (np.abs(flat) @ np.abs(exact(matrix))).reshape(want.shape)
    assert (np.abs(y - want) <= 1e-6 * magnitude + 1e-6).all()
    other = forms._int8_product(len(inputs), x, w.values, "whole")
    blocks = forms._int8_product(len(inputs), x, w.values, "blocks")
    np.testing.assert_allclose(blocks, other, rtol=1e-5, atol=1e-2)


def test_products_of_the_transposed_table():
    table = quantize(jnp.asarray(W), 1)
    x = jax.random.normal(jax.random.key(1), (3, 42))
    want = np.asarray(x, np.float64) @ exact(table).T
    np.testing.assert_allclose(matmul(x, table.T, jnp.float32), want, rtol=1e-4, atol=1e-4)


def test_bfloat16_rounds_the_activations_and_not_the_matrix():
    matrix = quantize(jnp.asarray(W), 0)
    x = jax.random.normal(jax.random.key(1), (3, 24))
    want = np.asarray(x.astype(jnp.bfloat16), np.float64) @ exact(matrix)
    y = matmul(x, matrix, jnp.bfloat16)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
    low = matmul(x, matrix, jnp.bfloat16, result=jnp.bfloat16)
    np.testing.assert_array_equal(low, y.astype(jnp.bfloat16))


def test_rows_of_a_table():
    ids = jnp.array([[0, 23], [5, 5]])
    table = quantize(jnp.asarray(W), 1)
    np.testing.assert_allclose(rows(table, ids), exact(table)[np.asarray(ids)], rtol=1e-6)
    np.testing.assert_array_equal(rows(jnp.asarray(W), ids), W.astype(np.float32)[np.asarray(ids)])


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
