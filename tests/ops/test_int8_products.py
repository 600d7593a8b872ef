"""Products of int8 on both sides, against whole numbers in NumPy, with the engine's int16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops.int8_products import (
    in_dynamic_int8,
    in_rows,
    in_static_int8,
    lookup_factor,
    nearest,
    static_factor,
)
from transformer_jax.ops.matmul import matmul
from transformer_jax.ops.matrices import reshaped

SIZES = [(1, 2, 3), (33, 128, 40)]


def drawn(size, seed=0):
    m, k, n = size
    rng = np.random.default_rng(seed)
    return (rng.normal(size=each).astype("f") for each in ((m, k), (k, n), (n,)))


@jax.jit
def static(w, alpha=50.0):
    return in_static_int8(w, 0, static_factor(w, 0), jnp.float32(alpha))


@jax.jit
def dynamic(w):
    return in_dynamic_int8(w, 0)


def of_the_engine(x_MK, q_KN, alpha, factor, bias_N):
    """Shifted by 127; in pairs, whose sums are cut to int16."""
    a = np.clip(np.rint(x_MK * np.float32(alpha)), -127, 127).astype(np.int64) + 127
    pairs = a[:, 0::2, None] * q_KN[None, 0::2] + a[:, 1::2, None] * q_KN[None, 1::2]
    pairs = np.clip(pairs, -(2**15), 2**15 - 1)
    return (pairs.sum(1) - 127 * q_KN.sum(0)) / (alpha * factor) + bias_N


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", SIZES)
def test_static_is_the_engines_arithmetic(size, dtype):
    x, w, bias = drawn(size)
    matrix = static(w)
    got = jax.jit(lambda x: matmul(x, matrix, dtype, bias=jnp.asarray(bias)))(x)
    q = np.asarray(matrix.values, np.int64)
    factor = float(static_factor(jnp.asarray(w), 0))
    np.testing.assert_array_equal(q, np.rint(w * np.float32(factor)))
    want = of_the_engine(x, q, 50.0, factor, bias)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_no_pair_exceeds_int16(spread):
    """Whatever is multiplied with it, and for matrices with few large numbers too."""
    quantized = jax.jit(lambda w: static(w).values)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        w = rng.normal(size=(64, 48)) * np.exp(spread * rng.normal(size=(64, 48)))
        q = np.asarray(quantized(w.astype("f")), np.int64)
        # The worst input has 254 where q is of one sign, and 0 elsewhere.
        for sign in (1, -1):
            worst = 254 * np.maximum(sign * q, 0)
            assert (worst[0::2] + worst[1::2]).max() <= 2**15 - 1
        assert np.abs(q).max() >= 63  # half of the range is used at least, where two are equal


def test_the_last_row_of_an_odd_number_is_alone():
    w = np.random.default_rng(0).normal(size=(7, 5)).astype("f")
    with_zeros = np.pad(w, ((0, 1), (0, 0)))
    assert static_factor(jnp.asarray(w), 0) == static_factor(jnp.asarray(with_zeros), 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", SIZES)
def test_dynamic_has_factors_of_rows_and_channels(size, dtype):
    x, w, bias = drawn(size)
    x *= np.geomspace(1e-3, 1e3, len(x), dtype="f")[:, None]
    matrix = dynamic(w)
    got = jax.jit(lambda x: matmul(x, matrix, dtype, bias=jnp.asarray(bias)))(x)
    alpha = np.float32(127) / np.abs(x).max(1, keepdims=True)
    factor = np.float32(127) / np.abs(w).max(0, keepdims=True)
    want = np.rint(x * alpha).astype(np.int64) @ np.rint(w * factor).astype(np.int64)
    np.testing.assert_allclose(got, want / (alpha * factor) + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("make", [static, dynamic])
def test_whole_numbers_give_what_training_simulates(make, count):
    """To the bit, with heads or without; and a row alone gives what it gives in any batch."""
    x, w, bias = map(jnp.asarray, drawn((5, 64, 48), seed=4))
    simulated, held = make(w), in_rows(make(w), 0)
    assert held.values.dtype == jnp.int8 and held.values.shape == (48, 64)
    run = jax.jit(lambda x, w, bias: matmul(x, w, "float32", bias=bias))
    want = run(x, simulated, bias)
    np.testing.assert_array_equal(run(x[:count], held, bias), want[:count])
    heads = reshaped(held, (64,), (6, 8))
    np.testing.assert_array_equal(run(x, heads, bias.reshape(6, 8)).reshape(5, 48), want)
    joined = jax.jit(lambda x, w: matmul(x, w, "float32", 2))
    got = joined(x.reshape(5, 8, 8), reshaped(held, (8, 8), (48,)))
    np.testing.assert_array_equal(got, run(x, simulated, None))


def test_a_table_that_is_looked_up_uses_the_whole_range():
    table = jnp.asarray(next(drawn((5, 8, 2))))
    held = in_static_int8(table, 1, lookup_factor(table), None)
    assert np.abs(held.values).max() == 127


@pytest.mark.parametrize("make", [static, dynamic])
def test_the_gradient_is_that_of_the_rounded_numbers(make):
    """Rounding counts as the identity, and what is cut has no gradient."""
    x, w, _ = map(jnp.asarray, drawn((5, 16, 7), seed=3))
    cotangent = jnp.asarray(next(drawn((5, 7, 1))))
    loss = jax.jit(jax.grad(lambda x, w: (matmul(x, make(w), "float32") * cotangent).sum(), (0, 1)))
    dx, dw = loss(x, w)
    held = make(w)
    rounded_w = held.values * held.scale
    alpha = held.static.alpha if held.static is not None else 127 / jnp.abs(x).max(1, keepdims=True)
    rounded_x = jnp.round(jnp.clip(x * alpha, -127, 127)) / alpha
    is_cut = jnp.abs(x * alpha) >= 127.5
    assert is_cut.any() == (make is static)
    np.testing.assert_allclose(dx, jnp.where(is_cut, 0, cotangent @ rounded_w.T), atol=1e-5)
    np.testing.assert_allclose(dw, rounded_x.T @ cotangent, atol=1e-5)


def test_rounding_is_to_even_and_exact():
    x = jnp.array([-2.5, -0.5, 0.5, 1.5, 126.9, 128.2, -1e9])
    np.testing.assert_array_equal(nearest(x), [-2, 0, 0, 2, 127, 127, -127])


def test_a_matrix_of_zeros_and_a_row_of_zeros():
    zeros = jnp.zeros((4, 3))
    for matrix in (static(zeros), dynamic(zeros)):
        y = matmul(jnp.zeros((2, 4)), matrix, "float32", bias=jnp.arange(3.0))
        np.testing.assert_array_equal(y, [[0.0, 1.0, 2.0]] * 2)
