"""The chunked core beside its formula, which is that of tests/mixers/test_kernel_attention.py."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.ops.attention import MASKED
from transformer_jax.ops.kernel_attention import (
    causal_kernel_attention,
    read_sums,
    sum_keys,
)

B, L, H, R, V, CHUNK = 2, 11, 2, 3, 5, 4


def arguments(seed=0):
    """Positive features, values and log scales, with other features for the numerator."""
    draw = np.random.default_rng(seed)
    norm_q, norm_k = draw.uniform(0.1, 1.0, size=(2, B, L, H, R)).astype(np.float32)
    q, k = draw.normal(size=(2, B, L, H, R)).astype(np.float32)
    v = draw.normal(size=(B, L, H, V)).astype(np.float32)
    return q, k, v, 2 * draw.normal(size=(B, L, H)).astype(np.float32), norm_q, norm_k


def test_a_later_key_of_any_size_changes_nothing_before_it():
    q, k, v, log_scale, norm_q, norm_k = arguments()
    run = jax.jit(lambda scale: causal_kernel_attention(q, k, v, scale, CHUNK, norm_q, norm_k))
    # exp(200) is far beyond float32: with one maximum for all keys, these would be all that is
    # left of the sums.
    with_huge = log_scale.copy()
    with_huge[:, 6] = 200.0
    huge = np.asarray(run(with_huge))
    np.testing.assert_array_equal(huge[:, :6], np.asarray(run(log_scale))[:, :6])
    np.testing.assert_allclose(huge[:, 8:] * 0, 0)
    only_it = np.einsum("bhr,bhr->bh", q[:, 8], k[:, 6]) / np.einsum(
        "bhr,bhr->bh", norm_q[:, 8], norm_k[:, 6]
    )
    np.testing.assert_allclose(huge[:, 8], only_it[..., None] * v[:, 6], rtol=1e-4, atol=1e-5)


def test_a_row_that_is_all_padding_gives_finite_gradients():
    q, k, v, log_scale, norm_q, norm_k = arguments()
    nothing = jnp.full_like(log_scale, MASKED)
    for grads in (
        jax.jit(jax.grad(lambda a: causal_kernel_attention(*a[:3], nothing, CHUNK, *a[3:]).sum()))(
            (q, k, v, norm_q, norm_k)
        ),
        jax.jit(jax.grad(lambda a: read_sums(a[0], sum_keys(a[1], a[2], nothing)).sum()))(
            (q, k, v)
        ),
    ):
        assert all(np.isfinite(grad).all() for grad in grads)
