"""The projection product: exact in float32, close in bfloat16, in both directions."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.ops.matmul import matmul

x = jax.random.normal(jax.random.key(0), (3, 5, 16))
w = jax.random.normal(jax.random.key(1), (16, 24))


def objective(x, w, dtype):
    return jnp.sin(matmul(x, w, dtype)).sum()


def test_float32_is_the_plain_product():
    np.testing.assert_allclose(matmul(x, w, jnp.float32), x @ w, rtol=1e-6)


def test_bfloat16_rounds_operands_and_gradient_and_nothing_else():
    low = jnp.bfloat16
    x_low, w_low = (a.astype(low).astype(jnp.float32) for a in (x, w))
    np.testing.assert_allclose(matmul(x, w, low), x_low @ w_low, rtol=1e-5, atol=1e-5)
    dx, dw = jax.grad(objective, (0, 1))(x, w, low)
    dy = jnp.cos(x_low @ w_low).astype(low).astype(jnp.float32)
    np.testing.assert_allclose(dx, dy @ w_low.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dw, jnp.einsum("btk,btn->kn", x_low, dy), rtol=1e-4, atol=1e-4)
    assert dx.dtype == x.dtype and dw.dtype == w.dtype


def test_a_transposed_gradient_compiles():
    # XLA's CPU backend refuses some bfloat16 products once it folds a transpose in.
    table = w.T
    dtable = jax.jit(jax.grad(lambda table: objective(x, table.T, jnp.bfloat16)))(table)
    assert dtable.shape == table.shape and np.isfinite(dtable).all()
