"""Dropout by hashing: the right rate, no structure, and a pure function of the key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops.dropout import dropout, random_bits
from transformer_jax.ops.sharding import own_rows
from transformer_jax.parallel.mesh import LOGICAL_TO_MESH, MeshConfig, make_mesh

SHAPE = (256, 512)
SIZE = SHAPE[0] * SHAPE[1]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_mean(rate):
    kept = np.asarray(dropout(jnp.ones(SHAPE), rate, jax.random.key(3)))
    sigma = np.sqrt(rate * (1 - rate) / SIZE)
    assert abs((kept == 0).mean() - rate) < 4 * sigma
    np.testing.assert_allclose(kept[kept > 0], 1 / (1 - rate), rtol=1e-6)


def test_no_key_or_rate_zero_is_the_identity():
    x = jax.random.normal(jax.random.key(0), (4, 5))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x


def test_neighbours_rows_and_keys_are_uncorrelated():
    bits = [
        np.asarray(random_bits(jax.random.key(seed), SHAPE)).astype(np.float64) / 2**32 - 0.5
        for seed in (1, 2)
    ]
    limit = 4 / np.sqrt(SIZE) / 12  # four standard errors of a product of two uniforms
    assert abs((bits[0] * bits[1]).mean()) < limit
    assert abs((bits[0][:, 1:] * bits[0][:, :-1]).mean()) < limit
    assert abs((bits[0][1:] * bits[0][:-1]).mean()) < limit
    np.testing.assert_array_less(np.abs(bits[0].mean(axis=0)), 5 * 0.2887 / np.sqrt(SHAPE[0]))


def test_every_bit_is_fair():
    bits = np.asarray(random_bits(jax.random.key(9), SHAPE))
    for place in range(32):
        assert abs(((bits >> place) & 1).mean() - 0.5) < 4 * 0.5 / np.sqrt(SIZE), place


@pytest.mark.parametrize("batch_axis", [0, 1])
def test_devices_that_trace_their_own_rows_have_the_bits_of_the_whole_batch(batch_axis):
    key, devices, shape = jax.random.key(5), 4, [3, 3, 5]
    mesh = make_mesh(MeshConfig(data=1), jax.devices()[:1])
    with own_rows(mesh, "data", LOGICAL_TO_MESH):
        parts = jax.vmap(
            lambda _: random_bits(key, tuple(shape), batch_axis),
            axis_name="data",
            out_axes=batch_axis,
        )(jnp.arange(devices))
    shape[batch_axis] *= devices
    np.testing.assert_array_equal(parts.reshape(shape), random_bits(key, tuple(shape)))
