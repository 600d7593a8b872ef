"""A recipe's plan: the memory that its programs need on given devices, and the expected time."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from transformer_jax.config import Config
from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.models.flops import train_step_flops
from transformer_jax.parallel.mesh import MeshConfig, decoding_mesh, make_mesh
from transformer_jax.plan.devices import Target
from transformer_jax.plan.hlo import by_kind, parse
from transformer_jax.plan.programs import Compiler, Program, bytes_per_device
from transformer_jax.plan.step_time import StepTime, estimate
from transformer_jax.recipes import ByPairs
from transformer_jax.training.trainer import Trainer

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What is known before anything runs. Bytes are per device, FLOPs of all devices together.

    Attributes:
        config: the recipe, resolved.
        target: the devices.
        mesh: axis -> devices along it.
        length: tokens of each sentence of a batch, on each side.
        train: the training step.
        decode: decoding of a batch of sentences of `length`, as in `eval`.
        evaluation: decoding between training steps; its bytes include the training state.
        num_params: of the model.
        param_bytes: parameters on the fullest device, as decoding on all devices reads them.
        own_param_bytes: parameters on a device if one process translates by itself, in the form
            of `decode.weights`.
        state_bytes: parameters, optimizer and average on the fullest device.
        fsdp_state_bytes: the same with all devices along `fsdp`.
        flops: of a training step.
        collectives: of a training step: kind -> (number, bytes).
        time: of a training step; None if the device is unknown or the step does not fit.
        largest_rows: B of the largest batch that fits; None if not searched for.
    """

    config: Config
    target: Target
    mesh: dict[str, int]
    length: int
    train: Program
    decode: Program
    evaluation: Program
    num_params: int
    param_bytes: int
    own_param_bytes: int
    state_bytes: int
    fsdp_state_bytes: int
    flops: int
    collectives: dict[str, tuple[int, int]]
    time: StepTime | None
    largest_rows: int | None

    @property
    def fits(self) -> bool:
        """Whether all programs fit."""
        return self.train.fits and self.decode.fits and self.evaluation.fits

    @property
    def tokens(self) -> int:
        """Source and target tokens of a training batch, padding included."""
        return 2 * self.train.rows * self.length

    @property
    def utilisation(self) -> float | None:
        """Model FLOPs a second, divided by the peak; None without an estimate of the time."""
        if self.time is None or self.target.device is None:
            return None
        peak = self.target.device.flops * len(self.target.devices)
        return self.flops / self.time.seconds / peak


def make_plan(
    config: Config,
    target: Target,
    *,
    by_pairs: ByPairs | None = None,
    length: int | None = None,
    largest_batch: bool = True,
) -> Plan:
    """Compiles the recipe's training step and decoding for the target, and reads the results.

    Args:
        config: the recipe.
        target: the devices.
        by_pairs: what a new run fills in by the size of its text.
        length: tokens of every sentence of the batch; default: `batch.max_length`, which takes
            the most memory.
        largest_batch: also search for the largest batch that fits, which takes a few more
            compilations.

    Raises:
        UserError: the mesh does not fit the devices, or the batch is too small for the mesh.
    """
    compiler = Compiler(config, target, by_pairs)
    config = compiler.config
    length = length or config.batch.max_length
    _LOGGER.info("compiling the training step and the searches, which takes some minutes")
    step = compiler.train_step(rows_of(compiler, length), length)
    module = parse(step.compiled.as_text()) if step.compiled else None
    # On a slice or on several nodes each host runs a process.
    first = [one for one in target.devices if one.process_index == target.devices[0].process_index]
    alone = decoding_mesh(config.mesh, first)
    by_fsdp = make_mesh(MeshConfig(data=1, fsdp=-1), target.devices)
    split = Trainer(config.model, config.train, by_fsdp).abstract
    return Plan(
        config=config,
        target=target,
        mesh=dict(compiler.mesh.shape),
        length=length,
        train=step,
        decode=compiler.decode(config.decode, length),
        evaluation=compiler.evaluation(length),
        num_params=api.num_params(config.model),
        param_bytes=bytes_per_device(compiler.decoding_params(config.decode, compiler.mesh)),
        own_param_bytes=bytes_per_device(compiler.decoding_params(config.decode, alone)),
        state_bytes=bytes_per_device(compiler.state),
        fsdp_state_bytes=bytes_per_device(split),
        flops=train_step_flops(config.model, step.rows, length),
        collectives=by_kind(module, len(target.devices)) if module else {},
        time=estimate(module, target) if module else None,
        largest_rows=largest_rows(compiler, step, length) if largest_batch else None,
    )


def rows_of(compiler: Compiler, length: int) -> int:
    """B of the recipe's batches of this length, by its token budget."""
    config, multiple = compiler.config, compiler.row_multiple
    if length > config.model.max_length:
        longest = config.model.max_length
        raise UserError(f"--plan_length={length}: the model has model.max_length={longest}")
    if not (rows := config.batch.budget // length // multiple * multiple):
        raise UserError(
            f"batch.tokens={config.batch.budget} does not hold {multiple} row(s) of {length} "
            "pieces, one for each part of the batch (devices along data x fsdp, times "
            f"train.accumulate); set it to at least {multiple * length}"
        )
    return rows


def largest_rows(compiler: Compiler, step: Program, length: int) -> int | None:
    """B of the largest batch of this length that fits; None if the device's memory is unknown.

    Args:
        compiler: for the device.
        step: a compiled training step of that length, where the search starts.
        length: tokens of a sentence.
    """
    memory = compiler.target.memory
    if memory is None:
        return None
    state = bytes_per_device(compiler.state)
    if state >= memory:
        return 0
    _LOGGER.info("compiling larger batches; --plan_no_search leaves them out")

    def fits(rows: int) -> bool:
        return (step if rows == step.rows else compiler.train_step(rows, length)).fits

    return largest_that_fits(fits, rows_that_fill(memory, state, step), compiler.row_multiple)


def rows_that_fill(memory: int, fixed: int, program: Program) -> int:
    """Rows that fill the memory, if all bytes but the fixed ones grow with the program's rows."""
    per_row = max(1.0, (program.bytes - fixed) / program.rows)
    return max(1, int((memory - fixed) / per_row))


def largest_that_fits(fits: Callable[[int], bool], guess: int, multiple: int) -> int:
    """The largest multiple of `multiple` that fits, or one at most a tenth below it.

    Bisection between a size that fits and one that does not, which are searched for from
    `guess` in growing steps. 0 if not even one `multiple` fits.

    Args:
        fits: asks the compiler; must be True up to some size and False beyond it.
        guess: where to start, best near the answer.
        multiple: all sizes are multiples of it.
    """
    good, bad, size, factor = 0, 0, float(guess), 1.25
    while not bad or bad - good > max(multiple, 0.1 * bad):
        rows = max(int(size) // multiple * multiple, good + multiple)
        rows = min(rows, bad - multiple) if bad else rows
        if fits(rows):
            good = rows
        else:
            bad = rows
        if good and bad:
            size = (good + bad) / 2
        else:
            size, factor = good * factor or bad / factor, factor * factor
    return good
