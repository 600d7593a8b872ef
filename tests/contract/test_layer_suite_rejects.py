"""The suite of norms and feed-forward networks rejects broken ones."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from transformer_jax.layers.feed_forward import Mlp
from transformer_jax.layers.norms import LayerNorm, Norm
from transformer_jax.testing import layers as layer_suite


class MixesPositions(Norm):
    def __call__(self, x):
        y = super().__call__(x)
        return y + 1e-3 * jnp.roll(y, 1, axis=-2) if y.ndim > 1 else y


class ScalesByTheWholeBatch(Norm):
    def __call__(self, x):
        return super().__call__(x) * jax.lax.rsqrt((x * x).mean())


class IsConstant(Norm):
    def __call__(self, x):
        return jnp.zeros_like(x) + self.scale + self.bias


class ForgetsItsBias(Norm):
    def __call__(self, x):
        return super().__call__(x) - jax.lax.stop_gradient(self.bias) * 0 - self.bias + 1.0


class HasNoEpsilon(Norm):
    """Its gradient at a row of zeros is not a number."""

    def __call__(self, x):
        return x / jnp.sqrt((x * x).mean(axis=-1, keepdims=True)) * self.scale + self.bias


class KeepsFloat32(Norm):
    def __call__(self, x):
        return super().__call__(x).astype(jnp.float32)


class ComputesInTheInputsDtype(Norm):
    def __call__(self, x):
        x = x - x.mean(axis=-1, keepdims=True)
        y = x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + self.epsilon)
        return (y * self.scale + self.bias).astype(self.dtype)


class HasNoLogicalAxes(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x * self.param("scale", nn.initializers.ones_init(), (x.shape[-1],))


class HasUnknownAxes(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.with_logical_partitioning(nn.initializers.ones_init(), ("width",))
        return x * self.param("scale", init, (x.shape[-1],))


def broken(cls):
    if not issubclass(cls, Norm):
        return lambda dtypes: cls()
    return lambda dtypes: cls(
        layer_suite.D, 1e-6, dtype=dtypes["dtype"], param_dtype=dtypes["param_dtype"]
    )


@pytest.mark.parametrize(
    ("cls", "check", "words"),
    [
        (MixesPositions, layer_suite.check_position_wise, "Not equal|mixed"),
        (ScalesByTheWholeBatch, layer_suite.check_position_wise, "Not equal|mixed"),
        (IsConstant, layer_suite.check_position_wise, "does not depend"),
        (ForgetsItsBias, layer_suite.check_gradients, "bias.* is zero"),
        (HasNoEpsilon, layer_suite.check_gradients, "padding"),
        (KeepsFloat32, layer_suite.check_dtypes, "gave float32"),
        (ComputesInTheInputsDtype, layer_suite.check_float32_inside, "Not equal"),
        (HasNoLogicalAxes, layer_suite.check_logical_axes, "no logical axes"),
        (HasUnknownAxes, layer_suite.check_logical_axes, "width"),
    ],
)
def test_rejects(cls, check, words):
    check(layer_suite.norm(LayerNorm()))  # which passes
    with pytest.raises(AssertionError, match=words):
        check(broken(cls))


def test_rejects_dropout_without_effect():
    with pytest.raises(AssertionError, match="changes nothing"):
        layer_suite.check_dropout(layer_suite.feed_forward(Mlp(dropout_rate=0.0)))
