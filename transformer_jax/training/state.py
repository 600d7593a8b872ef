"""The state of training: arrays only, donated to each step."""

from collections.abc import Mapping
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
    skipped: int32 scalar, the number of steps left out because their loss was not finite.
    skipped_in_a_row: int32 scalar, how many steps up to the last one were left out.

    A TrainState can also hold the shapes of these arrays, or their shardings.
    """

    step: Any
    params: Any
    opt_state: Any
    ema: Any
    skipped: Any = 0
    skipped_in_a_row: Any = 0

    @property
    def eval_params(self) -> Any:
        """The parameters to translate with: the average if one is kept."""
        return self.ema if self.ema else self.params

    def to_items(self) -> dict[str, Any]:
        """The items of a checkpoint, by name; `from_items` is the inverse."""
        trainer = {
            "step": self.step,
            "opt": self.opt_state,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
        }
        items = {"params": self.params, "trainer": trainer}
        return items | {"ema": self.ema} if self.ema else items

    @staticmethod
    def from_items(items: Mapping[str, Any]) -> "TrainState":
        """The state of a checkpoint."""
        trainer = items["trainer"]
        return TrainState(
            step=trainer["step"],
            params=items["params"],
            opt_state=trainer["opt"],
            ema=items.get("ema", {}),
            skipped=trainer["skipped"],
            skipped_in_a_row=trainer["skipped_in_a_row"],
        )


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
    """A NamedSharding for each array; optimizer state and average are split as the parameters."""
    abstract = jax.eval_shape(lambda: _init(model, optimizer, ema, 0))
    params = param_shardings(api.logical_axes(model), abstract.params, mesh)
    everywhere = replicated(mesh)
    return TrainState(
        step=everywhere,
        params=params,
        opt_state=optax.tree.map_params(
            optimizer,
            # Adafactor's factored statistics have other shapes than parameters: not split.
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
    """A new state, made on its devices."""
    make = jax.jit(lambda: _init(model, optimizer, ema, seed), out_shardings=shardings)
    return make()


def abstract_state(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    *,
    ema: bool,
    shardings: TrainState,
) -> TrainState:
    """Shapes, dtypes and shardings, into which a checkpoint is restored."""
    shapes = jax.eval_shape(lambda: _init(model, optimizer, ema, 0))
    return shapes_on(shapes, shardings)
