"""Feed-forward networks and norms against their formulas in float64 NumPy."""

import math
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.layers.feed_forward import ACTIVATIONS, Activation, Glu, Mlp
from transformer_jax.layers.norms import LayerNorm, Norm, RMSNorm
from transformer_jax.testing.layers import DTYPES, D, F, initialised

X = np.asarray(jax.random.normal(jax.random.key(0), (3, 5, D))) * 2
CONFIGS = [
    kind(activation=activation, use_bias=use_bias)
    for kind in (Mlp, Glu)
    for activation in ACTIVATIONS
    for use_bias in (True, False)
]

sigmoid = np.vectorize(lambda x: 1.0 / (1.0 + math.exp(-x)))
NAIVE = {
    "relu": lambda x: np.where(x > 0, x, 0.0),
    "gelu": np.vectorize(lambda x: x * 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))),
    "gelu_tanh": np.vectorize(
        lambda x: 0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
}


def naive(config, params, x):
    def dense(name, x):
        part = {key: np.asarray(value, np.float64) for key, value in params[name].items()}
        return x @ part["kernel"] + part.get("bias", 0.0)

    x = x.astype(np.float64)
    f = NAIVE[config.activation]
    h = f(dense("gate", x)) * dense("up", x) if isinstance(config, Glu) else f(dense("up", x))
    return dense("down", h)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_equals_the_formula(config):
    module = config.build(D, F, DTYPES)
    variables = initialised(module)
    assert all(("bias" in part) == config.use_bias for part in variables["params"].values())
    want = naive(config, variables["params"], X)
    np.testing.assert_allclose(module.apply(variables, jnp.asarray(X)), want, atol=2e-5)


def test_every_activation_can_be_chosen():
    assert get_args(Activation) == tuple(ACTIVATIONS)


def test_the_gradient_of_relu_needs_only_its_result():
    x = jnp.asarray([-2.0, -0.0, 0.0, 3.0])
    y, pull = jax.vjp(ACTIVATIONS["relu"], x)
    np.testing.assert_array_equal(y, jax.nn.relu(x))
    np.testing.assert_array_equal(pull(jnp.ones(4))[0], [0, 0, 0, 1])
    residuals = [r for r in jax.tree.leaves(pull) if getattr(r, "dtype", None) == x.dtype]
    assert all((np.asarray(r) >= 0).all() for r in residuals)  # the result, not x


ROWS = np.asarray(jax.random.normal(jax.random.key(0), (3, 5, 12))) * 3 + 7
FLOAT32 = {"dtype": "float32", "param_dtype": "float32"}
MODULES = {
    "layer": LayerNorm().build(12, **FLOAT32),
    "layer, epsilon": LayerNorm(epsilon=1e-1).build(12, **FLOAT32),
    "layer, no bias": LayerNorm(use_bias=False).build(12, **FLOAT32),
    "rms": RMSNorm().build(12, **FLOAT32),
    "rms, epsilon": RMSNorm(epsilon=1e-1).build(12, **FLOAT32),
    "group": Norm(12, 1e-5, groups=3),
    "group rms": Norm(12, 1e-5, groups=4, center=False, use_bias=False),
}


def naive_norm(module, params, x_D):
    """One vector, one group after the other."""
    params = {name: np.asarray(value, np.float64) for name, value in params.items()}
    width = len(x_D) // module.groups
    y_D = np.zeros(len(x_D))
    for start in range(0, len(x_D), width):
        part = x_D[start : start + width].astype(np.float64)
        if module.center:
            part = part - sum(part) / width
        y_D[start : start + width] = part / np.sqrt(sum(part**2) / width + module.epsilon)
    return y_D * params["scale"] + params.get("bias", 0.0)


@pytest.mark.parametrize("name", MODULES)
def test_a_norm_equals_the_formula(name):
    module = MODULES[name]
    variables = initialised(module)
    assert ("bias" in variables["params"]) == (name in ("layer", "layer, epsilon", "group"))
    got = module.apply(variables, jnp.asarray(ROWS))
    want = np.apply_along_axis(lambda x_D: naive_norm(module, variables["params"], x_D), -1, ROWS)
    np.testing.assert_allclose(got, want, atol=1e-5)
