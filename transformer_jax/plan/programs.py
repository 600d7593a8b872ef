"""The programs of a plan: the functions that training and decoding run, compiled.

Nothing is allocated: parameters, optimizer state and batches are shapes with shardings.
"""

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from transformer_jax.config import Config
from transformer_jax.data.tokenizer import vocabulary_sizes
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.models import api
from transformer_jax.ops.fast_dtype import fast_matmul_dtype
from transformer_jax.optimizers.optimizers import make_optimizer
from transformer_jax.parallel.mesh import (
    MeshConfig,
    batch_devices,
    batch_sharding,
    decoding_mesh,
    decoding_rows,
    make_mesh,
    param_shardings,
    replicated,
    shapes_on,
)
from transformer_jax.plan.topology import Target
from transformer_jax.training.state import TrainState, abstract_state, state_shardings
from transformer_jax.training.step import make_train_step
from transformer_jax.translation.model_calls import Sources, decode_batch


@dataclass(frozen=True)
class Program:
    """A compiled program, or one that the compiler refused for lack of memory.

    Attributes:
        rows: B of its batch, over all devices.
        bytes: on each device while it runs: arguments, results, temporaries and code.
        text: the compiled HLO; None if it was refused.
        fits: whether the compiler accepted it and the device has the memory.
        accessed: bytes that one run reads and writes on a device, loop bodies counted once.
        limit: bytes that the compiler allows, if it refused the program and named them. (On v5e
            it is 15.75 of the 16 GiB.)
    """

    rows: int
    bytes: int
    text: str | None
    fits: bool
    accessed: float = 0.0
    limit: int | None = None


def settled(config: Config, device: jax.Device) -> Config:
    """The config with the values that training fills in: vocabulary sizes and matmul dtype."""
    source_size, target_size = vocabulary_sizes(config.tokenizer)
    model = dataclasses.replace(
        config.model,
        source_vocab_size=config.model.source_vocab_size or source_size,
        target_vocab_size=config.model.target_vocab_size or target_size,
    )
    if model.matmul_dtype == "auto":
        model = dataclasses.replace(model, matmul_dtype=fast_matmul_dtype(device))
    return dataclasses.replace(config, model=model)


class Planner:
    """Compiles a recipe's programs for a target."""

    def __init__(self, config: Config, target: Target) -> None:
        self.config = settled(config, target.devices[0])
        self.target = target
        self.mesh: Mesh = make_mesh(config.mesh, target.devices)
        model, train = self.config.model, self.config.train
        rate = train.schedule.build(model.d_model, train.steps)
        self._optimizer = make_optimizer(train.optimizer, rate, train.clip_norm)
        ema = train.ema_decay is not None
        self._shardings = state_shardings(model, self._optimizer, ema, self.mesh)
        self.state: TrainState = abstract_state(
            model, self._optimizer, ema=ema, shardings=self._shardings
        )
        self._step = make_train_step(model, train, self._optimizer, self.mesh, self._shardings)

    @property
    def batch_devices(self) -> int:
        """Devices that share the rows of a batch."""
        return batch_devices(self.mesh)

    @property
    def row_multiple(self) -> int:
        """B of a training batch is a multiple of this."""
        return self.batch_devices * self.config.train.accumulate

    def rows(self, length: int) -> int:
        """B of the recipe's batches of this length, by its token budget."""
        return self.config.batch.tokens // length // self.row_multiple * self.row_multiple

    def train_step(self, rows: int, length: int) -> Program:
        """Compiles the training step for a batch of `rows` sentence pairs of `length` tokens."""
        ids = self._array((rows, length), jnp.int32)
        mask = self._array((rows, length), jnp.bool_)
        batch = {"source": ids, "source_mask": mask, "target": ids, "target_mask": mask}
        lowered = self._step.lower(self.state, batch)  # type: ignore[attr-defined]
        return self._compile(lowered, rows, self.bytes_per_device((self.state, batch)))

    def decode(self, config: DecodeConfig, length: int) -> Program:
        """Compiles the decoding of a batch of sentences of `length` tokens, encoder included.

        All devices share its rows, as in `eval` and in evaluations during training.
        """
        model = self.config.model
        rows = decoding_rows(config.batch_size, self.mesh)
        everywhere = replicated(self.mesh)
        key = jax.eval_shape(lambda: jax.random.key(0))
        lowered = decode_batch.lower(
            self.state.eval_params,
            Sources(
                self._array((rows, length), jnp.int32),
                self._array((rows, length), jnp.bool_),
                self._array((rows,), jnp.int32),
                self._array((rows,), jnp.int32),
            ),
            jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=everywhere),
            model_config=model,
            method=config.method.static,
            max_length=min(config.max_target_length(length), model.max_length),
            mesh=self.mesh,
        )
        return self._compile(lowered, rows, self.bytes_per_device(self.state.eval_params))

    def bytes_per_device(self, tree: Any) -> int:
        """Bytes on the fullest device of a tree of shapes with shardings."""
        return sum(
            jnp.dtype(leaf.dtype).itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
            for leaf in jax.tree.leaves(tree)
        )

    def param_bytes_of_one_process(self) -> int:
        """Bytes of parameters on each device if one process translates by itself."""
        mesh = decoding_mesh(self.config.mesh, self.target.process_devices)
        params = self.state.eval_params
        shardings = param_shardings(api.logical_axes(self.config.model), params, mesh)
        return self.bytes_per_device(shapes_on(params, shardings))

    def state_bytes_with_fsdp(self) -> int:
        """`bytes_per_device(state)` with all devices along `fsdp`."""
        mesh = make_mesh(MeshConfig(data=1, fsdp=-1), self.target.devices)
        model, ema = self.config.model, self.config.train.ema_decay is not None
        shardings = state_shardings(model, self._optimizer, ema, mesh)
        return self.bytes_per_device(
            abstract_state(model, self._optimizer, ema=ema, shardings=shardings)
        )

    def _array(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        sharding: NamedSharding = batch_sharding(self.mesh)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def _compile(self, lowered: Any, rows: int, arguments: int) -> Program:
        try:
            compiled = lowered.compile()
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
        fits = self.target.memory is None or total <= self.target.memory
        costs = compiled.cost_analysis() or {}
        accessed = float(costs.get("bytes accessed", 0.0))
        return Program(rows, total, compiled.as_text(), fits, accessed)


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
