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
from transformer_jax.models.lora import NoAdapter
from transformer_jax.models.paths import by_path
from transformer_jax.parallel.mesh import (
    batch_devices,
    batch_sharding,
    decoding_rows,
    make_mesh,
)
from transformer_jax.plan.devices import Target
from transformer_jax.recipes import ByPairs
from transformer_jax.runs.prepared import with_prepared
from transformer_jax.runs.start import begin_new
from transformer_jax.training.trainer import Trainer
from transformer_jax.translation.model import Model
from transformer_jax.translation.model_calls import Decoding, Sources, decode_batch


@dataclass(frozen=True)
class Program:
    """A compiled program, or one that the compiler refused for lack of memory.

    Attributes:
        rows: B of its batch, over all devices.
        bytes: on each device while it runs: arguments, results, temporaries and code.
        limit: bytes that a device has; None if unknown. Those that the compiler names if it
            refused the program. (On v5e it is 15.75 of the 16 GiB.)
        compiled: from JAX; None if it was refused.
    """

    rows: int
    bytes: int
    limit: int | None
    compiled: Any

    @property
    def fits(self) -> bool:
        """Whether the compiler accepted it and the device has the memory."""
        return self.compiled is not None and (self.limit is None or self.bytes <= self.limit)


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
        trainer: of the recipe on the mesh.
        state: the training state, as shapes with shardings.
        row_multiple: B of a training batch is a multiple of this.
    """

    def __init__(self, config: Config, target: Target, by_pairs: ByPairs | None = None) -> None:
        self.config = config = begin_new(*with_prepared(config, by_pairs), target.devices)
        self.target = target
        self.mesh = make_mesh(config.mesh, target.devices)
        self.row_multiple = batch_devices(self.mesh) * config.train.accumulate
        self.trainer = Trainer(config.model, config.train, self.mesh)
        self.state = self.trainer.abstract
        # Decoding reads the weights with the adapter merged.
        self._decoded = Model((dataclasses.replace(config.model, adapter=NoAdapter()),))

    def train_step(self, rows: int, length: int) -> Program:
        """Compiles the training step for a batch of `rows` sentence pairs of `length` tokens."""
        batch = self.trainer.abstract_batch((rows, length, length))
        lowered = self.trainer.lower(self.state, batch)
        return self._compile(lowered, rows, bytes_per_device((self.state, batch)))

    def decoding_params(self, config: DecodeConfig, mesh: Mesh) -> Any:
        """The parameters that decoding reads, as shapes with shardings over a mesh."""
        return self._decoded.abstract_held(config.weights, mesh)

    def decode(self, config: DecodeConfig, length: int) -> Program:
        """Compiles the decoding of a batch of sentences of `length` tokens, encoder included.

        All devices share its rows, as in `eval` and in evaluations during training.
        """
        params = self.decoding_params(config, self.mesh)
        rows = decoding_rows(config.batch_size, self.mesh)
        shape = partial(jax.ShapeDtypeStruct, sharding=batch_sharding(self.mesh))
        ids_BS, mask_BS = (shape((rows, length), dtype) for dtype in (jnp.int32, jnp.bool_))
        number_B = shape((rows,), jnp.int32)
        sources = Sources(ids_BS, mask_BS, number_B, number_B, num_best_B=number_B)
        longest = min(config.max_target_length(length), self._decoded.max_length)
        decoding = Decoding(config.method.static, longest, config.repetition, config.allow_unk)
        options = {"model": self._decoded, "decoding": decoding, "mesh": self.mesh}
        lowered = decode_batch.lower(params, sources, **options)
        return self._compile(lowered, rows, bytes_per_device(params))

    def evaluation(self, length: int) -> Program:
        """Compiles decoding between training steps; its bytes include the training state."""
        program = self.decode(while_training(self.config.decode), length)
        decoded = by_path(self.decoding_params(DecodeConfig(), self.mesh))
        # What decoding reads as it is in the state is there once.
        averages = by_path(self.state.averages).items()
        shared = [leaf for path, leaf in averages if decoded.get(path) == leaf]
        used = program.bytes + bytes_per_device(self.state) - bytes_per_device(shared)
        return dataclasses.replace(program, bytes=used)

    def _compile(self, lowered: Any, rows: int, arguments: int) -> Program:
        try:
            compiled = lowered.compile(compiler_options=dict(self.target.options))
        except jax.errors.JaxRuntimeError as error:
            if (refused := refusal(str(error), arguments)) is None:
                raise
            needed, limit = refused
            return Program(rows, needed, limit or self.target.memory, None)
        return Program(rows, program_bytes(compiled), self.target.memory, compiled)


def program_bytes(compiled: Any) -> int:
    """Bytes on each device while a program runs: arguments, results, temporaries and code."""
    memory, parts = compiled.memory_analysis(), ("argument", "output", "temp", "generated_code")
    size = sum(getattr(memory, f"{part}_size_in_bytes") for part in parts)
    return int(size - memory.alias_size_in_bytes)


def bytes_per_device(tree: Any) -> int:
    """Bytes on the fullest device of a tree of shapes with shardings."""
    return sum(
        jnp.dtype(leaf.dtype).itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(tree)
    )


#: Messages of the TPU's compiler: what the program needs, and what there is. The second form
#: names only the temporaries, if these alone are too large.
_REFUSALS = (
    r"Used ([\d.]+[KMGT]?) of ([\d.]+[KMGT]?) hbm",
    r"total memory required for [\w ]+ \(([\d.]+[KMGT]?)\) exceeds available HBM"
    r"(?: \(([\d.]+[KMGT]?)\))?",
)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


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
            needed, limit = match.groups()
            return _bytes(needed) + besides, _bytes(limit) if limit else None
    return None


def _bytes(text: str) -> int:
    return int(float(text.rstrip("KMGT")) * _UNITS.get(text[-1], 1))
