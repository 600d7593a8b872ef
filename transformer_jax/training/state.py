"""What training carries from step to step: arrays only, donated to each step."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh

from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig
from transformer_jax.parallel.mesh import param_shardings, replicated, shapes_on


@struct.dataclass
class TrainState:
    """Attributes:
    step: int32 scalar, the number of batches seen.
    params: the parameters.
    opt_state: Optax's.
    ema: exponential moving average of the parameters, or an empty dict.
    skipped: int32 scalar, steps that changed nothing since their loss was not finite.
    skipped_in_a_row: int32 scalar, how many of these ended with the last step.

    Trees of the arrays' shapes and of their shardings are TrainStates too.
    """

    step: Any
    params: Any
    opt_state: Any
    ema: Any
    skipped: Any = 0
    skipped_in_a_row: Any = 0

    @property
    def eval_params(self) -> Any:
        """The parameters to translate with: the average where one is kept."""
        return self.ema if self.ema else self.params


def _init(
    model: ModelConfig, optimizer: optax.GradientTransformation, ema: bool, seed: int
) -> TrainState:
    params = api.init(model, jax.random.key(seed))
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        ema=jax.tree.map(jnp.copy, params) if ema else {},
        skipped=jnp.zeros((), jnp.int32),
        skipped_in_a_row=jnp.zeros((), jnp.int32),
    )


def state_shardings(
    model: ModelConfig, optimizer: optax.GradientTransformation, ema: bool, mesh: Mesh
) -> TrainState:
    """A NamedSharding for each array: optimizer state and average lie as their parameters."""
    abstract = jax.eval_shape(lambda: _init(model, optimizer, ema, 0))
    params = param_shardings(api.logical_axes(model), abstract.params, mesh)
    everywhere = replicated(mesh)
    return TrainState(
        step=everywhere,
        params=params,
        opt_state=optax.tree.map_params(
            optimizer,
            # A factored statistic (Adafactor) has another shape than its parameter.
            lambda leaf, sharding, shape: sharding if leaf.shape == shape.shape else everywhere,
            abstract.opt_state,
            params,
            abstract.params,
            transform_non_params=lambda _: everywhere,
        ),
        ema=params if ema else {},
        skipped=everywhere,
        skipped_in_a_row=everywhere,
    )


def init_state(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    *,
    ema: bool,
    seed: int,
    shardings: TrainState,
) -> TrainState:
    """A fresh state, made on the devices where it belongs."""
    make = jax.jit(lambda: _init(model, optimizer, ema, seed), out_shardings=shardings)
    return make()


def abstract_state(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    *,
    ema: bool,
    shardings: TrainState,
) -> TrainState:
    """Shapes, dtypes and shardings, for restoring without allocating first."""
    shapes = jax.eval_shape(lambda: _init(model, optimizer, ema, 0))
    return shapes_on(shapes, shardings)
