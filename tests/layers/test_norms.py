"""Norms against their formulas in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.layers.norms import LayerNorm, Norm, RMSNorm
from transformer_jax.testing.layers import initialised

X = np.asarray(jax.random.normal(jax.random.key(0), (3, 5, 12))) * 3 + 7
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


def naive(module, params, x_D):
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
def test_equals_the_formula(name):
    module = MODULES[name]
    variables = initialised(module)
    assert ("bias" in variables["params"]) == (name in ("layer", "layer, epsilon", "group"))
    got = module.apply(variables, jnp.asarray(X))
    want = np.apply_along_axis(lambda x_D: naive(module, variables["params"], x_D), -1, X)
    np.testing.assert_allclose(got, want, atol=1e-5)
