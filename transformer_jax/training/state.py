"""The state of training: arrays only, donated to each step."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh

from transformer_jax.config import TrainConfig
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig
from transformer_jax.parallel.mesh import param_shardings, replicated


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


def new_state(
    model: ModelConfig, optimizer: optax.GradientTransformation, train: TrainConfig
) -> TrainState:
    """The state before the first step."""
    params = api.init(model, jax.random.key(train.seed))
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        ema={} if train.ema_decay is None else jax.tree.map(jnp.copy, params),
        skipped=jnp.zeros((), jnp.int32),
        skipped_in_a_row=jnp.zeros((), jnp.int32),
    )


def state_shardings(
    model: ModelConfig, optimizer: optax.GradientTransformation, abstract: TrainState, mesh: Mesh
) -> TrainState:
    """A NamedSharding for each array; optimizer state and average are split as the parameters.

    Args:
        model: the model.
        optimizer: made the state.
        abstract: the shapes of the state.
        mesh: the devices.
    """
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
        ema=params if abstract.ema else {},
        skipped=everywhere,
        skipped_in_a_row=everywhere,
    )
