"""Blockwise and kernel attention against the plain one: outputs, gradients, memory."""

from contextlib import nullcontext
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from tests.devices import with_eight_devices
from transformer_jax.ops import flash_attention as flash
from transformer_jax.ops.attention import (
    NO_HOOKS,
    Hooks,
    attention_mask,
    attention_weights,
    dot_product_attention,
)
from transformer_jax.ops.flash_attention import blockwise_attention, chosen_kernel, flash_attention
from transformer_jax.ops.sharding import layout
from transformer_jax.parallel.mesh import MeshConfig, activations_on, make_mesh

B, T, M, H, K = 3, 13, 11, 4, 4


def arrays(groups=H, length=M):
    keys = jax.random.split(jax.random.key(0), 4)
    q = jax.random.normal(keys[0], (B, T, H, K))
    k = jax.random.normal(keys[1], (B, length, groups, K))
    v = jax.random.normal(keys[2], (B, length, groups, K))
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
    ("causal", "groups", "block", "scale"),
    [
        (False, H, 4, None),
        (True, H, 4, 0.3),
        (False, 2, 5, None),
        (True, 1, 4, None),
        (True, 2, 64, None),
    ],
)
def test_blockwise_equals_plain_with_its_gradients(causal, groups, block, scale):
    length = T if causal else M
    qkv, weights = arrays(groups, length)
    mask = key_mask(length)
    rates = jnp.linspace(0.1, 1.0, H)

    def plain(q, k, v, rates):
        bias = decay_bias(rates)(jnp.arange(T), jnp.arange(length))
        allowed = attention_mask(mask, causal=causal)
        return dot_product_attention((q, k, v), allowed, bias, Hooks(scale=scale))

    def blocks(q, k, v, rates):
        hooks = Hooks(decay_bias(rates), scale=scale)
        return blockwise_attention((q, k, v), mask, hooks, causal=causal, block=block)

    want, got = (with_gradients(f, qkv, weights, rates) for f in (plain, blocks))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, atol=1e-5), want, got)


def test_a_row_without_any_key_gives_zeros_and_finite_gradients():
    qkv, weights = arrays()
    nothing = jnp.zeros((B, M), bool)
    y, (gradients,) = with_gradients(
        lambda q, k, v: blockwise_attention((q, k, v), nothing, block=4), qkv, weights
    )
    assert (np.asarray(y) == 0).all()
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))
    assert np.isfinite(dot_product_attention(qkv, nothing[:, None, None])).all()


def test_weights_are_a_distribution_over_real_keys_and_float32():
    (q, k, _), _ = arrays()
    mask = attention_mask(key_mask(M), causal=False)
    weights = attention_weights(q.astype(jnp.bfloat16), k.astype(jnp.bfloat16), mask, None)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)
    assert (np.asarray(weights)[1, :, :, 5:] == 0).all()


def test_large_scores_do_not_overflow():
    (q, k, v), _ = arrays()
    mask = key_mask(M)
    want = dot_product_attention((100 * q, k, v), attention_mask(mask, causal=False))
    got = blockwise_attention((100 * q, k, v), mask, block=4)
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_dropped_weights_are_those_of_a_softmax():
    # With v the identity the output is the weight matrix itself.
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 40, 1, K))
    v = jnp.eye(40)[None, :, None, :]
    mask = jnp.ones((1, 40), bool)
    weights = dot_product_attention((q, k, v), attention_mask(mask, causal=False))
    dropped = blockwise_attention((q, k, v), mask, Hooks(None, 0.3, jax.random.key(1)), block=16)
    kept = np.asarray(dropped) != 0
    np.testing.assert_allclose(dropped[kept], weights[kept] / 0.7, rtol=1e-4)
    assert 0.65 < kept.mean() < 0.75
    assert (kept[0, :16] != kept[0, 16:32]).any(), "blocks share their random bits"


def test_memory_is_linear_in_the_length():
    def temporary_bytes(length, attention):
        x = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)

        def gradient(q, k, v):
            return jax.grad(lambda *qkv: attention(*qkv).sum(), argnums=(0, 1, 2))(q, k, v)

        return jax.jit(gradient).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes

    def fused(q, k, v):
        return flash_attention((q, k, v), jnp.ones(q.shape[:2], bool), causal=True)

    def plain(q, k, v):
        mask = attention_mask(jnp.ones(q.shape[:2], bool), causal=True)
        return dot_product_attention((q, k, v), mask)

    assert temporary_bytes(8192, fused) < 2.2 * temporary_bytes(4096, fused)
    assert temporary_bytes(8192, plain) > 3.5 * temporary_bytes(4096, plain)
    assert temporary_bytes(4096, fused) < 0.05 * temporary_bytes(4096, plain)


def on(platform):
    """A mesh of eight described devices."""
    devices = np.array([SimpleNamespace(platform=platform)] * 8)
    return layout(SimpleNamespace(devices=devices, size=8), {})


def test_which_kernel(monkeypatch):
    """That of the devices of the mesh, which may only be described; without one, the process's."""

    def chosen(platform, dtype=jnp.bfloat16, *, width=64, hooks=NO_HOOKS):
        with on(platform) if platform else nullcontext():
            return chosen_kernel(jax.ShapeDtypeStruct((1, 16, 8, width), dtype), hooks)

    assert chosen("cpu") == "blockwise"
    assert chosen("gpu") == "cudnn"
    assert chosen("gpu", jnp.float32) == "blockwise"  # cuDNN's flash attention has no float32
    assert chosen("gpu", width=20) == chosen("gpu", width=136) == "blockwise"
    assert chosen("tpu") == chosen("tpu", jnp.float32) == "splash"
    for platform, kernel in (("gpu", "cudnn"), ("tpu", "splash")):
        assert chosen(platform, hooks=Hooks(decay_bias(jnp.ones(8)))) == "blockwise"
        assert chosen(platform, hooks=Hooks(None, 0.1, jax.random.key(0))) == "blockwise"
        assert chosen(platform, hooks=Hooks(None, 0.1)) == kernel
    for platform, devices, kernel in (
        ("cpu", 1, "blockwise"),
        ("tpu", 1, "splash"),
        ("tpu", 4, "blockwise"),
        ("gpu", 4, "cudnn"),
    ):
        monkeypatch.setattr(jax, "default_backend", lambda platform=platform: platform)
        monkeypatch.setattr(jax, "device_count", lambda devices=devices: devices)
        assert chosen(None) == kernel


CUBE, HEADS = MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=2, fsdp=1, tensor=4)
#: Name -> (mesh; B, T, M, H, G; is it causal), and the same five sizes on one device of the eight.
CASES = {
    "all axes": ((CUBE, 4, 130, 130, 4, 4, True), (1, 130, 130, 2, 2)),
    "keys of another length": ((CUBE, 4, 7, 131, 2, 2, False), (1, 7, 131, 1, 1)),
    "one head of keys": ((CUBE, 4, 5, 5, 4, 1, True), (1, 5, 5, 2, 1)),
    "fewer heads of keys than devices": ((HEADS, 2, 9, 6, 8, 2, False), (1, 9, 6, 2, 1)),
    "heads that are not divided": ((CUBE, 4, 5, 6, 3, 3, False), (1, 5, 6, 3, 3)),
    "rows that are not divided": ((CUBE, 3, 6, 6, 4, 2, True), (3, 6, 6, 2, 1)),
    "two blocks of queries": ((CUBE, 4, 520, 300, 2, 2, False), (1, 520, 300, 1, 1)),
    "a block of four is skipped": ((CUBE, 4, 530, 530, 2, 2, True), (1, 530, 530, 1, 1)),
}
ON_MESHES = """
import json
from tests.ops.test_flash_attention import CASES, on_a_mesh
print(json.dumps({name: on_a_mesh(*case) for name, (case, _) in CASES.items()}))
"""


def on_a_mesh(mesh, batch, length, memory, heads, groups, causal):
    """The interpreted kernel beside the plain form, on eight virtual devices.

    Gives the largest differences of the output and of each gradient, and the sizes on a device.
    """
    keys, width, sizes = jax.random.split(jax.random.key(0), 4), 8, []
    q, weights = jax.random.normal(keys[0], (2, batch, length, heads, width))
    k, v = jax.random.normal(keys[1], (2, batch, memory, groups, width))
    mask = np.arange(memory)[None] < np.linspace(memory, 1, batch).astype(int)[:, None]

    def kernel(q, k, v, mask):
        sizes[:] = *q.shape[:2], k.shape[1], q.shape[2], k.shape[2]
        return flash.splash_attention(q, k, v, mask, causal=causal, scale=0.3)

    def split(q, k, v):
        with activations_on(make_mesh(mesh)):
            return flash.by_rows_and_heads(kernel, (q, k, v), mask)

    def plain(q, k, v):
        allowed = attention_mask(mask, causal=causal)
        return dot_product_attention((q, k, v), allowed, hooks=Hooks(scale=0.3))

    # True: by the interpreter that makes XLA operations. The other calls back into Python, and
    # eight devices waiting for each other's calls come to a standstill on two cores.
    with pltpu.force_tpu_interpret_mode(True):
        got = with_gradients(split, (q, k, v), weights)
    want = with_gradients(plain, (q, k, v), weights)
    errors = jax.tree.map(lambda one, other: float(jnp.abs(one - other).max()), got, want)
    return jax.tree.leaves(errors), sizes


@pytest.fixture(scope="module")
def on_meshes():
    return with_eight_devices("-c", ON_MESHES)


@pytest.mark.parametrize("name", CASES)
def test_each_device_runs_the_kernel_for_its_rows_and_heads(on_meshes, name):
    errors, sizes = on_meshes[name]
    assert tuple(sizes) == CASES[name][1]
    assert max(errors) < 2e-5 and len(errors) == 4  # of the output, and of three gradients


@pytest.mark.parametrize(("platform", "kernel"), [("gpu", "cudnn"), ("tpu", "splash")])
def test_a_row_without_any_key_reaches_the_kernels_with_one(platform, kernel, monkeypatch):
    (q, k, v), _ = arrays()
    mask = key_mask(M).at[1].set(False)
    seen = []
    monkeypatch.setitem(
        flash._KERNELS, kernel, lambda q, k, v, mask, **_: seen.append(mask) or jnp.zeros_like(q)
    )
    devices = np.array([SimpleNamespace(platform=platform)])
    with layout(SimpleNamespace(devices=devices, size=1, shape={}), {"heads": None}):
        flash_attention([x.astype(jnp.bfloat16).repeat(2, axis=-1) for x in (q, k, v)], mask)
    np.testing.assert_array_equal(seen[0].sum(axis=1), [M, 1, 1])
    assert seen[0][:, 0].all()
