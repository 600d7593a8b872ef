"""The projection product: exact in float32, close in bfloat16, in both directions."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from transformer_jax.layers.projections import Dense
from transformer_jax.ops import matmul as forms
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


# Heads H = 4 of K = 6 channels: to them, from them, and back again with all axes kept.
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "contracted"),
    [((3, 5, 16), (16, 4, 6), 1), ((3, 5, 4, 6), (4, 6, 16), 2), ((7, 4, 6), (4, 6, 2, 3), 2)],
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_more_axes_are_the_flat_product(x_shape, w_shape, contracted, dtype):
    x, w = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate((x_shape, w_shape)))
    rows, columns = x_shape[:-contracted], w_shape[contracted:]

    def flat(x, w, dtype):
        inner = int(np.prod(w_shape[:contracted]))
        y = matmul(x.reshape(*rows, inner), w.reshape(inner, -1), dtype)
        return jnp.sin(y.reshape(*rows, *columns)).sum()

    def whole(x, w, dtype):
        y = matmul(x, w, dtype, contracted)
        assert y.shape == (*rows, *columns)
        return jnp.sin(y).sum()

    wanted, got = (
        jax.jit(jax.value_and_grad(f, (0, 1)), static_argnums=2)(x, w, dtype) for f in (flat, whole)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, wanted)


@pytest.mark.parametrize("contracted", [1, 2])
def test_both_platforms_forms_are_one_product(contracted):
    a = jax.random.normal(jax.random.key(2), (3, 5, 4, 6))
    b = jax.random.normal(jax.random.key(3), (*a.shape[-contracted:], 2, 7))
    bias = jax.random.normal(jax.random.key(4), (2, 7))
    cpu, other, gpu = (
        forms._product(contracted, jnp.float32, a, b, bias, form)
        for form in ("flat", "whole", "rounded")
    )
    np.testing.assert_allclose(cpu, other, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(gpu, other)
    np.testing.assert_array_equal(*(forms._transposed(contracted, a, is_cpu) for is_cpu in (1, 0)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_tpu_heads_come_out_of_the_product(dtype):
    class Both(nn.Module):
        def setup(self):
            self.into = Dense(16, 24, ("embed", "heads"), dtype=dtype, matmul_dtype=dtype)
            self.out = Dense(24, 16, ("heads", "embed"), dtype=dtype, matmul_dtype=dtype)

        def __call__(self, x):
            return self.out.join(self.into.split(x, 4))

    x = jnp.ones((3, 5, 16), dtype)
    params = jax.eval_shape(Both().init, jax.random.key(0), x)
    text = jax.jit(Both().apply).trace(params, x).lower(lowering_platforms=("tpu",)).as_text()
    products = re.findall(r"dot_general .*-> tensor<([\dx]+)xf32>", text)
    assert products == ["3x5x4x6", "3x5x16"]
    assert not re.search(r"reshape .*\(tensor<3x5x", text)  # activations stay as they are


@pytest.mark.parametrize(
    ("dtype", "rows", "result"), [("bfloat16", "15", "bf16"), ("float32", "3x5", "f32")]
)
def test_on_a_gpu_products_write_the_dtype_of_their_layer(dtype, rows, result):
    """A call of cuBLAS is not fused with a conversion, and adds a bias to matrices alone."""
    layer = Dense(16, 24, ("embed", "mlp"), dtype=dtype, matmul_dtype="bfloat16")
    x = jnp.ones((3, 5, 16), dtype)
    params = jax.eval_shape(layer.init, jax.random.key(0), x)

    def gradient(params, x):
        return jax.grad(lambda p, x: layer.apply(p, x).astype(jnp.float32).sum(), (0, 1))(params, x)

    text = jax.jit(gradient).trace(params, x).lower(lowering_platforms=("cuda",)).as_text()
    products = re.findall(r"dot_general .*-> tensor<([\dx]+)x(\w+)>", text)
    # The product itself is not needed for its gradients: of x, and of the kernel in float32.
    assert sorted(products) == sorted([(f"{rows}x16", result), ("16x24", "f32")])
    forward = jax.jit(layer.apply).trace(params, x).lower(lowering_platforms=("cuda",)).as_text()
    assert re.findall(r"dot_general .*-> tensor<([\dx]+)x(\w+)>", forward) == [
        (f"{rows}x24", result)
    ]


@pytest.mark.parametrize("matmul_dtype", [jnp.float32, jnp.bfloat16])
def test_a_bias_is_added_before_rounding(matmul_dtype):
    bias = jax.random.normal(jax.random.key(5), (24,))

    def apart(x, w, bias):
        return (matmul(x, w, matmul_dtype) + bias).astype(jnp.bfloat16)

    def together(x, w, bias):
        return matmul(x, w, matmul_dtype, bias=bias, result=jnp.bfloat16)

    def summed(f):
        return jax.value_and_grad(
            lambda *args: jnp.sin(f(*args).astype(jnp.float32)).sum(), (0, 1, 2)
        )(x, w, bias)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        summed(together),
        summed(apart),
    )
