"""The training of a model on a mesh: its state and its step."""

import functools

import jax
from jax.sharding import Mesh

from transformer_jax.config import TrainConfig
from transformer_jax.models.config import ModelConfig
from transformer_jax.optimizers.optimizers import make_optimizer
from transformer_jax.parallel.mesh import shapes_on
from transformer_jax.training.state import TrainState, new_state, state_shardings
from transformer_jax.training.step import make_train_step


class Trainer:
    """What the configs of a model and of its training determine on a mesh.

    Attributes:
        schedule: step -> learning rate.
        abstract: shapes, dtypes and shardings of the state; a checkpoint is restored into it.
        step: see `make_train_step`.
    """

    def __init__(self, model: ModelConfig, train: TrainConfig, mesh: Mesh) -> None:
        self.schedule = train.schedule.build(model.d_model, train.steps)
        optimizer = make_optimizer(train.optimizer, self.schedule, train.clip_norm)
        self._new_state = functools.partial(new_state, model, optimizer, train)
        shapes: TrainState = jax.eval_shape(self._new_state)
        self._shardings = state_shardings(model, optimizer, shapes, mesh)
        self.abstract: TrainState = shapes_on(shapes, self._shardings)
        self.step = make_train_step(model, train, optimizer, mesh, self._shardings)

    def init(self) -> TrainState:
        """A new state, made on its devices."""
        return jax.jit(self._new_state, out_shardings=self._shardings)()
