"""Sums and products in float64, against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops import sums

X = jax.random.normal(jax.random.key(0), (9, 257)) * 1e3 + 1.0


def wide(function, x):
    def traced(x):
        with sums.wide_sums(True):
            return function(x)

    return jax.jit(traced)(x)


def of_float64(function):
    x = np.asarray(X, np.float64)
    e = np.exp(np.asarray(X - X.max(-1, keepdims=True)).astype(np.float64))
    total = e.sum(-1, keepdims=True)
    return {
        "mean": x.mean(-1, keepdims=True),
        "softmax": e / total,
        "logsumexp": x.max(-1, keepdims=True) + np.log(total),
        "exp": np.exp(np.asarray(X / 100).astype(np.float64)),
        "squares": np.einsum("ij,kj->ik", x, x),
    }[function.__name__]


def exp(x):
    return sums.exp(x / 100)


def squares(x):
    return sums.einsum("ij,kj->ik", x, x)


@pytest.mark.parametrize("function", [sums.mean, sums.softmax, sums.logsumexp, exp, squares])
def test_a_wide_result_is_that_of_float64(function):
    np.testing.assert_allclose(wide(function, X), of_float64(function), rtol=3e-7, atol=1e-30)


@pytest.mark.parametrize("function", [sums.mean, squares])
def test_the_order_of_what_is_summed_has_no_effect(function):
    """The same sum of float32 differs in most rows."""
    order = jax.random.permutation(jax.random.key(1), X.shape[1])
    np.testing.assert_array_equal(wide(function, X), wide(function, X[:, order]))
    plain = jax.jit(function)
    assert (plain(X) != plain(X[:, order])).any()


def test_a_product_is_rounded_before_it_enters_a_sum():
    y, z = np.asarray(X), np.asarray(X[::-1])
    got = wide(lambda x: sums.product(x, y) + z, X)
    np.testing.assert_array_equal(got, (np.asarray(X) * y).astype(np.float32) + z)


def test_elsewhere_nothing_is_wide():
    with sums.wide_sums(False):
        assert "f64" not in str(jax.make_jaxpr(lambda x: squares(sums.mean(exp(x))))(X))
    np.testing.assert_array_equal(sums.mean(X), X.mean(-1, keepdims=True))
    np.testing.assert_array_equal(sums.softmax(X), jax.nn.softmax(X))
    want = jax.nn.logsumexp(X, -1, keepdims=True)
    np.testing.assert_array_equal(sums.logsumexp(X), want)
    assert wide(sums.mean, jnp.ones((2, 3))).dtype == jnp.float32
