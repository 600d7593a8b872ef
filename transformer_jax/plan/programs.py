"""The programs of a plan: the functions that training and decoding run, compiled.

Nothing is allocated: parameters, optimizer state and batches are shapes with shardings.
"""

import dataclasses
import math
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from transformer_jax.config import Config
from transformer_jax.decoding.config import DecodeConfig, while_training
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.lora import NoAdapter
from transformer_jax.models.paths import by_path
from transformer_jax.parallel.mesh import (
    batch_devices,
    batch_sharding,
    decoding_rows,
    make_mesh,
    param_shardings,
    shapes_on,
)
from transformer_jax.plan.devices import Target
from transformer_jax.recipes import ByPairs
from transformer_jax.runs.start import begin_new
from transformer_jax.training.state import TrainState
from transformer_jax.training.trainer import Trainer
from transformer_jax.translation.model import SingleModel
from transformer_jax.translation.model_calls import Sources, decode_batch


@dataclass(frozen=True)
class Program:
    """A compiled program, or one that the compiler refused for lack of memory.

    Attributes:
        rows: B of its batch, over all devices.
        bytes: on each device while it runs: arguments, results, temporaries and code.
        text: the compiled HLO; None if it was refused.
        fits: whether the compiler accepted it and the device has the memory.
        limit: bytes that the compiler allows, if it refused the program and named them. (On v5e
            it is 15.75 of the 16 GiB.)
    """

    rows: int
    bytes: int
    text: str | None
    fits: bool
    limit: int | None = None


class Compiler:
    """Compiles a recipe's programs for a target.

    Args:
        config: the recipe.
        target: the devices.
        by_pairs: what a new run fills in by the size of its text.

    Attributes:
        config: the recipe as a new run on the target begins with it: nothing is left open.
        target: the devices.
        mesh: over these devices.
        state: the training state, as shapes with shardings.
        row_multiple: B of a training batch is a multiple of this.
    """

    def __init__(self, config: Config, target: Target, by_pairs: ByPairs | None = None) -> None:
        self.config = config = begin_new(config, by_pairs, target.devices).config
        self.target = target
        self.mesh = make_mesh(config.mesh, target.devices)
        self.row_multiple = batch_devices(self.mesh) * config.train.accumulate
        trainer = Trainer(config.model, config.train, self.mesh)
        self.state, self._lower = trainer.abstract, trainer.lower

    def state_on(self, mesh: Mesh) -> TrainState:
        """The training state, as shapes with shardings over a mesh."""
        return Trainer(self.config.model, self.config.train, mesh).abstract

    def train_step(self, rows: int, length: int) -> Program:
        """Compiles the training step for a batch of `rows` sentence pairs of `length` tokens."""
        ids = self._array(jnp.int32, rows, length)
        mask = self._array(jnp.bool_, rows, length)
        batch = {"source": ids, "source_mask": mask, "target": ids, "target_mask": mask}
        lowered = self._lower(self.state, batch)
        return self._compile(lowered, rows, bytes_per_device((self.state, batch)))

    def decoding_params(self, config: DecodeConfig, mesh: Mesh) -> Any:
        """The parameters that decoding reads, as shapes with shardings over a mesh."""
        model = self._decoding_model
        convert = partial(api.for_decoding, model, weights=config.weights)
        shapes = jax.eval_shape(convert, api.abstract_params(model))
        axes = api.decoding_axes(model, config.weights)
        return shapes_on(shapes, param_shardings(axes, shapes, mesh))

    @property
    def _decoding_model(self) -> ModelConfig:
        """Decoding reads the weights with the adapter merged."""
        return dataclasses.replace(self.config.model, adapter=NoAdapter())

    def decode(self, config: DecodeConfig, length: int) -> Program:
        """Compiles the decoding of a batch of sentences of `length` tokens, encoder included.

        All devices share its rows, as in `eval` and in evaluations during training.
        """
        model, params = self._decoding_model, self.decoding_params(config, self.mesh)
        rows = decoding_rows(config.batch_size, self.mesh)
        lowered = decode_batch.lower(
            params,
            Sources(
                ids_BS=self._array(jnp.int32, rows, length),
                mask_BS=self._array(jnp.bool_, rows, length),
                max_lengths_B=self._array(jnp.int32, rows),
                numbers_B=self._array(jnp.int32, rows),
                num_best_B=self._array(jnp.int32, rows),
            ),
            model=SingleModel(model),
            method=config.method.static,
            max_length=min(config.max_target_length(length), model.max_length),
            repetition=config.repetition,
            mesh=self.mesh,
        )
        return self._compile(lowered, rows, bytes_per_device(params))

    def evaluation(self, length: int) -> Program:
        """Compiles decoding between training steps; its bytes include the training state."""
        program = self.decode(while_training(self.config.decode), length)
        decoded = by_path(self.decoding_params(DecodeConfig(), self.mesh))
        # What decoding reads as it is in the state is there once.
        shared = {
            path: leaf
            for path, leaf in by_path(self.state.averages).items()
            if decoded.get(path) == leaf
        }
        used = program.bytes + bytes_per_device(self.state) - bytes_per_device(shared)
        return dataclasses.replace(
            program, bytes=used, fits=program.fits and self._has_memory(used)
        )

    def _array(self, dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(self.mesh))

    def _has_memory(self, needed: int) -> bool:
        return self.target.memory is None or needed <= self.target.memory

    def _compile(self, lowered: Any, rows: int, arguments: int) -> Program:
        try:
            compiled = lowered.compile(compiler_options=dict(self.target.options))
        except jax.errors.JaxRuntimeError as error:
            refused = refusal(str(error), arguments)
            if refused is None:
                raise
            needed, limit = refused
            return Program(rows, needed, None, False, limit=limit)
        memory = compiled.memory_analysis()
        total = (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
            + memory.generated_code_size_in_bytes
        )
        return Program(rows, total, compiled.as_text(), self._has_memory(total))


def bytes_per_device(tree: Any) -> int:
    """Bytes on the fullest device of a tree of shapes with shardings."""
    return sum(
        jnp.dtype(leaf.dtype).itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(tree)
    )


#: Messages of the TPU's compiler: what the program needs, and what there is. The second form
#: names only the temporaries, if these alone are too large.
_REFUSALS = (
    r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm",
    r"total memory required for [\w ]+ \(([\d.]+)([KMGT]?)\) exceeds available HBM"
    r"(?: \(([\d.]+)([KMGT]?)\))?",
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def refusal(message: str, arguments: int) -> tuple[int, int | None] | None:
    """(bytes needed, bytes available) of a program that was refused for lack of memory.

    Args:
        message: of the compiler.
        arguments: bytes of the program's arguments, to be added to its temporaries.

    Returns:
        None for another error. The bytes available are None if the message does not name them.
    """
    for form, besides in zip(_REFUSALS, (0, arguments), strict=True):
        if match := re.search(form, message):
            needed, unit, limit, limit_unit = match.groups()
            available = _bytes(limit, limit_unit) if limit else None
            return _bytes(needed, unit) + besides, available
    return None


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])
