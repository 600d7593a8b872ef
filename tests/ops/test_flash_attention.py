"""Blockwise and kernel attention against the plain one: outputs, gradients, memory."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops.attention import Hooks, attention_mask, dot_product_attention
from transformer_jax.ops.flash_attention import (
    blockwise_attention,
    chosen_kernel,
    flash_attention,
    kernel_for,
    pallas_attention,
)
from transformer_jax.ops.sharding import layout

B, T, M, H, K = 3, 13, 11, 4, 4


def arrays(groups=H, length=M, key_width=K):
    keys = jax.random.split(jax.random.key(0), 4)
    q = jax.random.normal(keys[0], (B, T, H, key_width))
    k = jax.random.normal(keys[1], (B, length, groups, key_width))
    v = jax.random.normal(keys[2], (B, length, H if groups == 1 else groups, K))
    weights = jax.random.normal(keys[3], (B, T, H, K))
    return (q, k, v), weights


def key_mask(length):
    return jnp.arange(length)[None] < jnp.array([length, 5, 1])[:, None]


def decay_bias(rates_H):
    def bias(q_positions, k_positions):
        distance_TM = jnp.abs(q_positions[:, None] - k_positions[None])
        return -rates_H[:, None, None] * distance_TM[None] ** 0.5

    return bias


def with_gradients(function, qkv, weights, *parameters):
    def loss(qkv, *parameters):
        y = function(*qkv, *parameters)
        return (y * weights).sum(), y

    places = tuple(range(1 + len(parameters)))
    gradients, y = jax.jit(jax.grad(loss, argnums=places, has_aux=True))(qkv, *parameters)
    return y, gradients


@pytest.mark.parametrize(
    ("causal", "groups", "block"),
    [(False, H, 4), (True, H, 4), (False, 2, 5), (True, 1, 4), (True, 2, 64)],
)
def test_blockwise_equals_plain_with_its_gradients(causal, groups, block):
    length = T if causal else M
    qkv, weights = arrays(groups, length)
    mask = key_mask(length)
    rates = jnp.linspace(0.1, 1.0, H)

    def plain(q, k, v, rates):
        bias = decay_bias(rates)(jnp.arange(T), jnp.arange(length))
        return dot_product_attention(q, k, v, attention_mask(mask, causal=causal), bias)

    def blocks(q, k, v, rates):
        return blockwise_attention(
            q, k, v, mask, Hooks(decay_bias(rates)), causal=causal, block=block
        )

    want, got = (with_gradients(f, qkv, weights, rates) for f in (plain, blocks))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, atol=1e-5), want, got)


def test_keys_may_be_wider_than_values_and_scaled_otherwise():
    (q, k, v), _ = arrays(groups=1, key_width=8)
    want = dot_product_attention(q, k, v, attention_mask(key_mask(M), causal=False), scale=0.3)
    got = blockwise_attention(q, k, v, key_mask(M), scale=0.3, block=4)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_row_without_any_key_gives_zeros_and_finite_gradients():
    qkv, weights = arrays()
    nothing = jnp.zeros((B, M), bool)
    y, (gradients,) = with_gradients(
        lambda q, k, v: blockwise_attention(q, k, v, nothing, block=4), qkv, weights
    )
    assert (np.asarray(y) == 0).all()
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


def test_large_scores_do_not_overflow():
    (q, k, v), _ = arrays()
    mask = key_mask(M)
    want = dot_product_attention(100 * q, k, v, attention_mask(mask, causal=False))
    got = blockwise_attention(100 * q, k, v, mask, block=4)
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_dropped_weights_are_those_of_a_softmax():
    # With v the identity the output is the weight matrix itself.
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 40, 1, K))
    v = jnp.eye(40)[None, :, None, :]
    mask = jnp.ones((1, 40), bool)
    weights = dot_product_attention(q, k, v, attention_mask(mask, causal=False))
    dropped = blockwise_attention(q, k, v, mask, Hooks(None, 0.3, jax.random.key(1)), block=16)
    kept = np.asarray(dropped) != 0
    np.testing.assert_allclose(dropped[kept], weights[kept] / 0.7, rtol=1e-4)
    assert 0.65 < kept.mean() < 0.75
    blocks = kept[0, :32, 0, :32].reshape(2, 16, 2, 16).swapaxes(1, 2).reshape(4, -1)
    assert len({row.tobytes() for row in blocks}) == 4, "blocks share their random bits"


def test_memory_is_linear_in_the_length():
    def temporary_bytes(length, attention):
        x = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)

        def gradient(q, k, v):
            return jax.grad(lambda *qkv: attention(*qkv).sum(), argnums=(0, 1, 2))(q, k, v)

        return jax.jit(gradient).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes

    def fused(q, k, v):
        return flash_attention(q, k, v, jnp.ones(q.shape[:2], bool), causal=True)

    def plain(q, k, v):
        mask = attention_mask(jnp.ones(q.shape[:2], bool), causal=True)
        return dot_product_attention(q, k, v, mask)

    assert temporary_bytes(8192, fused) < 2.2 * temporary_bytes(4096, fused)
    assert temporary_bytes(8192, plain) > 3.5 * temporary_bytes(4096, plain)
    assert temporary_bytes(4096, fused) < 0.05 * temporary_bytes(4096, plain)


def test_which_kernel():
    def chosen(backend, dtype=jnp.bfloat16, *, width=64, groups=2, devices=1, extras=False):
        q = jax.ShapeDtypeStruct((1, 16, 8, width), dtype)
        k = jax.ShapeDtypeStruct((1, 16, groups, width), dtype)
        return kernel_for(backend, devices, q, k, k, has_extras=extras)

    assert chosen("cpu") == "blockwise"
    assert chosen("gpu") == "cudnn"
    assert chosen("gpu", jnp.float32) == "blockwise"  # cuDNN's flash attention has no float32
    assert chosen("gpu", width=20) == "blockwise"
    assert chosen("gpu", extras=True) == "blockwise"
    assert chosen("tpu", jnp.float32) == "pallas"
    assert chosen("tpu", devices=8) == "blockwise"


def test_the_kernel_is_that_of_the_devices_of_the_mesh():
    """They may only be described, and this process has others."""
    q = jax.ShapeDtypeStruct((1, 16, 8, 64), jnp.bfloat16)
    assert chosen_kernel(q, q, q) == "blockwise"
    for platform, size, kernel in (
        ("gpu", 8, "cudnn"),
        ("tpu", 1, "pallas"),
        ("cpu", 1, "blockwise"),
    ):
        devices = np.array([SimpleNamespace(platform=platform)] * size)
        with layout(SimpleNamespace(devices=devices, size=size), {}):
            assert chosen_kernel(q, q, q) == kernel
    assert chosen_kernel(q, q, q) == "blockwise"


@pytest.mark.parametrize("causal", [False, True])
def test_the_pallas_kernel_is_called_rightly(causal):
    # Interpreted on the CPU: what this shows is our padding, masks and head order.
    from jax.experimental.pallas import tpu as pltpu

    length = T if causal else M
    (q, k, v), _ = arrays(groups=2, length=length)
    mask = key_mask(length)
    with pltpu.force_tpu_interpret_mode():
        got = pallas_attention(q, k, v, mask, causal=causal, scale=K**-0.5)
    want = dot_product_attention(q, k, v, attention_mask(mask, causal=causal))
    np.testing.assert_allclose(got, want, atol=1e-5)
