"""Chunked scans and the delta rule against the loop: outputs and every gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import naive_recurrences as naive
from transformer_jax.ops import scans
from transformer_jax.ops.delta_rule import delta_rule_scan, unit_lower_inverse
from transformer_jax.ops.scans import _POSITIONS, channel_decay_scan, scalar_decay_scan
from transformer_jax.ops.selective_scan import (
    _TOKENS,
    _associatively,
    _in_chunks,
    _one_by_one,
    selective_scan,
)

B, L, H, K, V = 2, 11, 2, 3, 5
CHUNKS = [1, 4, 16]


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


QKV = normal(0, B, L, H, K), normal(1, B, L, H, K), normal(2, B, L, H, V)
BY_HEAD = -np.exp(normal(3, B, L, H))


def assert_same(got, want, arguments, atol=1e-5):
    """Two functions agree in every output and, for random weights on those, every gradient."""
    weights = [normal(9, *x.shape) for x in jax.tree.leaves(jax.eval_shape(want, *arguments))]

    def with_gradients(function):
        def both(*arguments):
            outputs, pull = jax.vjp(function, *arguments)
            return outputs, pull(jax.tree.unflatten(jax.tree.structure(outputs), weights))

        return jax.jit(both)(*arguments)

    (outputs, gradients), (expected, right) = with_gradients(got), with_gradients(want)
    for x, y in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=atol)
    for x, y in zip(gradients, right, strict=True):
        np.testing.assert_allclose(x, y, atol=10 * atol)


@pytest.mark.parametrize(("chunk", "group"), [*((chunk, 16) for chunk in CHUNKS), (1, 3)])
def test_scalar_decays_equal_the_loop(chunk, group, monkeypatch):
    monkeypatch.setattr(scans, "_GROUP", group)  # 3: groups of groups of chunks
    assert_same(
        lambda *a: [scalar_decay_scan(a, chunk)],
        lambda *a: naive.scalar_decay(*a)[:1],
        (*QKV, BY_HEAD),
    )


@pytest.mark.parametrize("chunk", CHUNKS)
def test_both_ways_equal_the_masked_product(chunk):
    """The L x L form: every pair has the decays between its two tokens, on both sides."""
    decays = BY_HEAD.copy()
    decays[:, 1:8] = -90_000.0  # after which the weak ones still count
    q, k, v = QKV

    def product(q, k, v, w):
        rows = [
            [w[:, min(t, s) + 1 : max(t, s) + 1].sum(axis=1) for s in range(L)] for t in range(L)
        ]
        between = jnp.stack([jnp.stack(row, -1) for row in rows], -2)  # [B, H, L, L]
        scores = jnp.einsum("btgk,bsgk->bgts", q, k) * jnp.exp(between)
        return [jnp.einsum("bhts,bshv->bthv", scores, v)]

    def one_pass(*arrays):
        return [scalar_decay_scan(arrays, chunk, both_ways=True)]

    assert_same(one_pass, product, (q[:, :, :1], k[:, :, :1], v, decays))


def test_the_form_that_a_cpu_does_not_take_gives_the_same():
    e, n, length = 4, 3, 7
    arguments = (
        -np.exp(normal(2, e, n)),
        normal(0, length, B, e),
        np.exp(normal(1, length, B, e)),
        normal(3, length, B, n),
        normal(4, length, B, n),
    )
    assert_same(
        lambda *arrays: [_in_chunks(arrays, (_associatively, 4))],
        lambda *arrays: [_in_chunks(arrays, (_one_by_one, 3))],
        arguments,
        atol=2e-5,
    )


def check_chunks(function, arguments, short, long):
    """A CPU's program has arrays of the first sizes, other devices' of the second."""
    traced = jax.jit(function, static_argnums=len(arguments) - 1).trace(*arguments)
    cpu, tpu = (traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "tpu"))
    assert short in cpu and long not in cpu
    assert long in tpu and short not in tpu


def test_devices_other_than_a_cpu_take_fewer_and_longer_chunks():
    batch, e, n, chunk = 2, 3, 5, 16
    x, b = (jax.ShapeDtypeStruct((batch, 4 * _TOKENS, size), jnp.float32) for size in (e, n))
    a = jax.ShapeDtypeStruct((e, n), jnp.float32)
    sizes = (f"x{length}x{batch}x{e}xf32" for length in (chunk, _TOKENS // batch))
    check_chunks(selective_scan, ((x, x, a, b, b), chunk), *sizes)


@pytest.mark.parametrize("length", [_POSITIONS - 1, 4 * _POSITIONS])
def test_devices_other_than_a_cpu_take_longer_chunks_for_scalar_decays(length):
    heads, k, chunk = 2, 3, 16
    q, w = (jax.ShapeDtypeStruct((1, length, heads, *size), jnp.float32) for size in ((k,), ()))
    sizes = (f"x{size}x{size}xf32" for size in (chunk, min(length, _POSITIONS)))
    check_chunks(scalar_decay_scan, ((q, q, q, w), chunk), *sizes)


@pytest.mark.parametrize("scan", ["scalar", "channel"])
def test_strong_decays_lose_no_digits_behind_them(scan):
    """A decay of e^-20000 at one position, weak ones after it: what follows stays exact."""
    length = 64
    q = k = jnp.ones((1, length, 1, 1))
    w = jnp.full((1, length, 1, 1), -0.01).at[:, 3].set(-2e4)
    if scan == "scalar":
        function, loop = scalar_decay_scan, naive.scalar_decay
        w, more = w[..., 0], ()
    else:
        function, loop = channel_decay_scan, naive.channel_decay
        more = (jnp.ones((1, length, 1)),)

    def scanned(w):
        return function((q, k, k, w, *more), length)

    y, gradient = jax.jit(lambda w: (scanned(w), jax.grad(lambda w: scanned(w).sum())(w)))(w)
    want, _ = jax.jit(loop)(q, k, k, w, *more)
    np.testing.assert_allclose(y, want, rtol=1e-5)
    assert np.isfinite(gradient).all()


def test_no_decay_overflows_and_none_divides():
    """Every decay so strong that its inverse is no float32 number."""
    w = jnp.full((1, 37, 1, 2), -100.0)
    q = k = v = jnp.ones((1, 37, 1, 2))
    own = jnp.ones((1, 37, 1))
    function = lambda w: channel_decay_scan((q, k, v, w, own), 16)  # noqa: E731
    y, gradient = jax.jit(lambda w: (function(w), jax.grad(lambda w: function(w).sum())(w)))(w)
    # Token t reads the one before it, which nothing has decayed yet, and itself.
    np.testing.assert_allclose(y[0, 1:, 0], 3.0, rtol=1e-6)
    assert np.isfinite(gradient).all()


def of_the_delta_rule(length=L, decay=(K,)):
    return (
        normal(0, B, length, H, K),
        normal(1, B, length, H, K) / 2,
        normal(2, B, length, H, V),
        normal(3, B, length, H, K) / 2,
        -np.exp(normal(4, B, length, H, *decay)),
    )


@pytest.mark.parametrize("decay", [(), (K,)], ids=["head", "channel"])
@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_the_delta_rule_equals_the_loop(chunk, decay):
    given = of_the_delta_rule(decay=decay)
    assert_same(lambda *a: delta_rule_scan(a, chunk), naive.delta_rule, given)


@pytest.mark.parametrize("log_decay", [0.0, -1e-3, -80.0])
def test_one_key_again_and_again_at_full_strength(log_decay):
    """Every token replaces what the last one wrote; powers of A would overflow."""
    length = 128
    q, _, v, _, w = of_the_delta_rule(length, decay=())
    k = np.zeros((B, length, H, K), np.float32)
    k[..., 0] = 1.0

    def read(q, k, v, w):
        return delta_rule_scan((q, k, v, k, w), 64)

    w = np.full_like(w, log_decay)
    y, last = jax.jit(read)(q, k, v, w)
    np.testing.assert_allclose(y, q[..., :1] * v, atol=1e-5)
    np.testing.assert_allclose(last[:, :, 0], v[:, -1], atol=1e-5)
    grads = jax.jit(jax.grad(lambda *a: (read(*a)[0] ** 2).sum(), (0, 1, 2, 3)))(q, k, v, w)
    assert all(np.isfinite(grad).all() for grad in grads)
    np.testing.assert_allclose(grads[2], 2 * q[..., :1] ** 2 * v, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_the_inverse_is_exact(size):
    below = jnp.tril(normal(0, B, size, size), -1)
    inverse, pull = jax.vjp(unit_lower_inverse, below)
    want = np.linalg.inv(np.eye(size) + np.asarray(below, np.float64))
    np.testing.assert_allclose(inverse, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    weights = normal(1, B, size, size)
    want = -np.swapaxes(want, 1, 2) @ weights @ np.swapaxes(want, 1, 2)
    np.testing.assert_allclose(pull(weights)[0], want, rtol=1e-3, atol=1e-5 * np.abs(want).max())
