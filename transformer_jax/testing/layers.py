"""What every norm and every feed-forward network must satisfy.

The checks raise AssertionError and take a `Build`, so that the suite can be tried on
broken layers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array

from transformer_jax.layers.feed_forward import FeedForwardConfig
from transformer_jax.layers.norms import NormConfig
from transformer_jax.models.paths import by_path
from transformer_jax.parallel.mesh import LOGICAL_TO_MESH

D, F = 12, 20
DTYPES = {"dtype": "float32", "matmul_dtype": "float32", "param_dtype": "float32"}

#: dtypes -> the module
Build = Callable[[dict[str, str]], nn.Module]


def norm(config: NormConfig) -> Build:
    """How a norm is built."""
    return lambda dtypes: config.build(D, dtype=dtypes["dtype"], param_dtype=dtypes["param_dtype"])


def feed_forward(config: FeedForwardConfig) -> Build:
    """How a feed-forward network is built."""
    return lambda dtypes: config.build(D, F, dtypes)


def inputs(*leading: int) -> Array:
    """Features [..., D] whose mean is not 0."""
    return jax.random.normal(jax.random.key(1), (*leading, D)) + 0.5


def initialised(module: nn.Module) -> Any:
    """Variables with nothing left at zero or one."""
    return noisy(nn.unbox(module.init(jax.random.key(2), inputs(1))))


def noisy(variables: Any) -> Any:
    """Variables of which none is zero, as biases and gates are at first: it would hide mistakes."""
    rng = np.random.default_rng(0)  # NumPy compiles nothing for each shape
    return jax.tree.map(
        lambda x: x + jnp.asarray(0.1 * rng.standard_normal(x.shape), x.dtype), variables
    )


def check_reached(gradients: Mapping[str, Any]) -> None:
    """A gradient, finite and not zero, reaches every leaf of nested dicts."""
    for name, leaf in by_path(gradients).items():
        numbers = np.asarray(leaf)
        assert np.isfinite(numbers).all(), f"the gradient of {name} is not finite"
        assert np.any(numbers), f"the gradient of {name} is zero"


def check_position_wise(build: Build) -> None:
    """Each vector is mapped on its own, whatever the leading axes: [D], [B, L, D], [B, Z, 1, D]."""
    module = build(DTYPES)
    variables, x = initialised(module), inputs(2, 3, 4)
    y = module.apply(variables, x)
    assert y.shape == x.shape, f"{x.shape} became {y.shape}"
    assert jnp.abs(y - y[:1, :1, :1]).max() > 0, "the output does not depend on the input"
    for index in np.ndindex(2, 3, 4):
        np.testing.assert_allclose(module.apply(variables, x[index]), y[index], atol=1e-5)
    jacobian = jax.jacobian(lambda x: module.apply(variables, x))(x[0])
    places = jacobian.transpose(0, 1, 3, 4, 2, 5).reshape(12, 12, D, D)
    assert (places[~np.eye(12, dtype=bool)] == 0).all(), "positions are mixed"


def check_gradients(build: Build) -> None:
    """Every parameter gets a gradient, finite and not zero; so does the input, even of zeros."""
    module = build(DTYPES)
    variables, x = initialised(module), inputs(2, 5)
    weights = jax.random.normal(jax.random.key(4), x.shape)

    def loss(variables: Any, x: Array) -> Array:
        return (module.apply(variables, x) * weights).sum()

    of_parameters, of_x = jax.grad(loss, argnums=(0, 1))(variables, x)
    check_reached(of_parameters | {"x": of_x})
    padding = jax.grad(loss, argnums=(0, 1))(variables, jnp.zeros_like(x))
    for leaf in jax.tree.leaves(padding):
        assert jnp.isfinite(leaf).all(), "the gradient at padding (zeros) is not finite"


def check_dtypes(build: Build) -> None:
    """The output has `dtype` and the parameters `param_dtype`, whatever the input."""
    for dtype, param_dtype in (("bfloat16", "float32"), ("float32", "bfloat16")):
        module = build(DTYPES | {"dtype": dtype, "param_dtype": param_dtype})
        variables = initialised(module)
        assert {x.dtype for x in jax.tree.leaves(variables)} <= {jnp.dtype(param_dtype)}
        for x in (inputs(3), inputs(3).astype(jnp.bfloat16)):
            y = module.apply(variables, x)
            assert y.dtype == dtype, f"dtype={dtype} gave {y.dtype}"


def check_float32_inside(build: Build) -> None:
    """bfloat16 inputs and outputs lose no more than the rounding of the two.

    The mean and the spread of the inputs differ by a factor of 32: statistics in bfloat16
    would have lost five of its eight bits.
    """
    x = (inputs(64) + 32.0).astype(jnp.bfloat16)
    exact, rounded = build(DTYPES), build(DTYPES | {"dtype": "bfloat16"})
    variables = initialised(exact)
    want = exact.apply(variables, x.astype(jnp.float32))
    got = rounded.apply(variables, x).astype(jnp.float32)
    np.testing.assert_allclose(got, want, rtol=2**-8, atol=1e-6)


def check_logical_axes(build: Build) -> None:
    """Every axis of every parameter has a name that the table of logical axes has."""
    variables = build(DTYPES).init(jax.random.key(2), inputs(1))
    for name, leaf in by_path(variables).items():
        assert isinstance(leaf, nn.LogicallyPartitioned), f"{name} has no logical axes"
        assert len(leaf.names) == leaf.value.ndim, f"{name} has the axes {leaf.names}"
        unknown = set(leaf.names) - set(LOGICAL_TO_MESH)
        assert not unknown, f"{name}: no mesh axis is known for {unknown}"


def check_dropout(build: Build) -> None:
    """Dropout is on exactly where a key is given: same key, same output; no key, no dropout."""
    module = build(DTYPES)
    variables, x = initialised(module), inputs(64)

    def apply(seed: int | None) -> Array:
        rngs = {} if seed is None else {"dropout": jax.random.key(seed)}
        return module.apply(variables, x, rngs=rngs)

    np.testing.assert_array_equal(apply(None), apply(None))
    np.testing.assert_array_equal(apply(1), apply(1))
    assert (apply(1) != apply(None)).any(), "a key changes nothing"
    assert (apply(1) != apply(2)).any(), "two keys drop the same"


CHECKS = [check_position_wise, check_gradients, check_dtypes, check_logical_axes]
EVERY_NORM = [*CHECKS, check_float32_inside]
EVERY_FEED_FORWARD = CHECKS
