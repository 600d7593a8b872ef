"""The blocked patterns against explicit L x L masks: outputs and every gradient."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference.naive_attention import (
    naive_bigbird_mask,
    naive_masked_attention,
    naive_strided_mask,
    naive_window_mask,
)
from transformer_jax.ops import block_sparse_attention, sparse_attention
from transformer_jax.ops.attention import Hooks

H, K, V = 2, 4, 3
TABLE = jax.random.normal(jax.random.key(9), (H, 101))


def lookup(table_HP, q_positions, k_positions):
    """A bias that is no function of the distance alone."""
    distance = k_positions[None, :] - q_positions[:, None]
    return table_HP[:, distance + 50] * jnp.cos(q_positions)[None, :, None]


def check(length, attention, allowed):
    """Same output and gradients as with an L x L mask at real tokens; one row has none."""
    mask = jnp.arange(length)[None] < jnp.array([length, length // 2, 0])[:, None]
    keys = jax.random.split(jax.random.key(length), 4)
    qkv = [
        jax.random.normal(key, (3, length, H, width))
        for key, width in zip(keys[:3], (K, K, V), strict=True)
    ]
    ct = jax.random.normal(keys[-1], (3, length, H, V)) * mask[..., None, None]
    at = jnp.arange(length)

    def reference(qkv, mask, hooks):
        return naive_masked_attention(*qkv, mask, allowed, hooks.bias(at, at))

    def loss(form, qkv, table):
        y = form(qkv, mask, Hooks(lambda q_at, k_at: lookup(table, q_at, k_at)))
        return (y * ct).sum(), y

    @jax.jit
    def both(qkv, table):
        forms = attention, reference
        return [jax.grad(loss, (1, 2), has_aux=True)(form, qkv, table) for form in forms]

    (got_grads, got), (want_grads, want) = both(qkv, TABLE)
    real = mask[..., None, None]
    np.testing.assert_allclose(jnp.where(real, got, 0), jnp.where(real, want, 0), atol=2e-5)
    for got_grad, want_grad in zip(*map(jax.tree.leaves, (got_grads, want_grads)), strict=True):
        assert np.isfinite(got_grad).all()
        np.testing.assert_allclose(got_grad, want_grad, atol=3e-5)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Makes the loop over blocks take several steps wherever there are several blocks."""
    monkeypatch.setitem(block_sparse_attention._STEP_SCORES, "cpu", 500)
    monkeypatch.setattr(sparse_attention, "_SHORTEST_BLOCK", 3)


@pytest.mark.parametrize(
    ("length", "window", "dilation", "block", "causal"),
    [
        (37, 3, 1, 4, False),
        (37, 5, 1, 3, True),
        (29, 2, 3, None, False),
        (29, 2, 3, 2, True),
        (5, 1, 9, None, False),
        (7, 9, 2, None, True),
    ],
)
def test_window(length, window, dilation, block, causal):
    allowed = naive_window_mask(length, window, dilation, causal)

    def attention(*arguments):
        near = sparse_attention.Neighbours(window, dilation, causal, block=block)
        return sparse_attention.window_part(*arguments, near).value

    check(length, attention, allowed)


@pytest.mark.parametrize(
    ("length", "stride", "causal"),
    [
        (31, 4, False),
        (31, 4, True),
        (11, 1, True),
        (9, 5, False),
        (151, 70, False),
        (151, 70, True),
    ],
)
def test_strided(length, stride, causal):
    attention = partial(sparse_attention.strided_attention, stride=stride, causal=causal)
    check(length, attention, naive_strided_mask(length, stride, causal))


@pytest.mark.parametrize(
    ("blocks", "causal"),
    [((1, 1, 2), False), ((1, 1, 2), True), ((0, 2, 0), False), ((2, 0, 1), True)],
)
def test_bigbird(blocks, causal):
    length, block = 37, 4
    kinds = sparse_attention.BigBirdBlocks(*blocks, causal, seed=(0, 0))
    # The table is drawn for a longer sequence, as it is for a short sentence.
    reads = sparse_attention.bigbird_reads(12, kinds)
    given = {"reads_NG": reads, "block": block, "kinds": kinds}
    attention = partial(sparse_attention.bigbird_attention, **given)
    check(length, attention, naive_bigbird_mask(length, block, reads, blocks[0], causal))


@pytest.mark.parametrize("causal", [False, True])
def test_bigbird_reads(causal):
    kinds = sparse_attention.BigBirdBlocks(2, 1, 3, causal, seed=(0, 0))
    reads = sparse_attention.bigbird_reads(20, kinds)
    for n, row in enumerate(reads):
        row = row[row >= 0]
        assert len(set(row)) == len(row) and row.max() <= (n if causal else 19)
        window = {m for m in (n - 1, n, n + 1) if 0 <= m <= (n if causal else 19)}
        fixed = {m for m in (0, 1) if not causal or m <= n} | window
        assert fixed <= set(row)
        available = (n + 1 if causal else 20) - len(fixed)
        assert len(row) == len(fixed) + min(3, available)
    again = sparse_attention.bigbird_reads(20, kinds)
    other = sparse_attention.bigbird_reads(20, kinds._replace(seed=(0, 1)))
    assert (reads == again).all() and (reads != other).any()
    # In the decoder a longer table begins with the shorter one: what is decoded so far stays.
    if causal:
        longer = sparse_attention.bigbird_reads(30, kinds)
        assert (longer[:20] == reads).all()


def test_weights_are_dropped_and_the_rest_scaled():
    """With the identity for values the output is the weights."""
    length, rate = 48, 0.25
    q, k = jax.random.normal(jax.random.key(0), (2, 1, length, H, K))
    values = jnp.broadcast_to(jnp.eye(length)[None, :, None], (1, length, H, length))
    mask = jnp.ones((1, length), bool)

    @jax.jit
    def weights(key):
        return sparse_attention.strided_attention(
            (q, k, values), mask, Hooks(None, rate, key), stride=6, causal=False
        )

    plain = np.asarray(weights(None))
    np.testing.assert_allclose(plain.sum(-1), 1.0, atol=1e-5)
    got = np.asarray(weights(jax.random.key(1)))
    kept = got > 0
    np.testing.assert_allclose(got[kept], (plain / (1 - rate))[kept], rtol=1e-4)
    assert abs(1 - kept.sum() / (plain > 0).sum() - rate) < 0.05
    # No two tokens lose the same: each step of the loop has a key of its own.
    near = [kept[0, t, :, t - 6 : t + 7].tobytes() for t in range(6, length - 6)]
    assert len(set(near)) == len(near)
