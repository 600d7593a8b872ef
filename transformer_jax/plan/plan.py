"""A recipe's plan: the memory that its programs need on given devices, and the expected time."""

from dataclasses import dataclass, replace

from transformer_jax.config import Config
from transformer_jax.decoding.config import while_training
from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.plan.breakdown import breakdown
from transformer_jax.plan.collectives import by_kind
from transformer_jax.plan.flops import train_step_flops
from transformer_jax.plan.hlo import parse
from transformer_jax.plan.programs import Planner, Program
from transformer_jax.plan.search import guess_from, largest_that_fits
from transformer_jax.plan.timeline import Estimate, estimate, roofline
from transformer_jax.plan.topology import Target


@dataclass(frozen=True)
class Plan:
    """What is known before anything runs. Bytes are per device, FLOPs of all devices together.

    Attributes:
        target: the devices, in words.
        mesh: axis -> devices along it.
        num_devices: all of them.
        num_params: of the model.
        param_bytes: parameters on the fullest device.
        state_bytes: parameters, optimizer and average on it.
        fsdp_state_bytes: the same with all devices along `fsdp`.
        memory: of a device; None if unknown.
        rows: B of the training step's batch.
        length: tokens of its sentences, on each side.
        train: the training step.
        decode: decoding of a batch of sentences of `length`, as in `eval`.
        evaluation: decoding between training steps; its bytes include the training state.
        own_param_bytes: parameters on a device if one process translates by itself.
        collectives: of a training step: kind -> (number, bytes).
        flops: of a training step.
        peak_flops: a second, of all devices; None if unknown.
        estimate: of a training step's time; None if the device is unknown.
        breakdown: seconds of computing: part of the model -> kind of work; {} if unknown.
        largest_rows: B of the largest batch that fits; None if not searched for.
        steps: `train.steps` of the recipe.
        remat: `model.remat` of the recipe.
    """

    target: str
    mesh: dict[str, int]
    num_devices: int
    num_params: int
    param_bytes: int
    state_bytes: int
    fsdp_state_bytes: int
    memory: int | None
    rows: int
    length: int
    train: Program
    decode: Program
    evaluation: Program
    own_param_bytes: int
    collectives: dict[str, tuple[int, int]]
    flops: int
    peak_flops: float | None
    estimate: Estimate | None
    breakdown: dict[str, dict[str, float]]
    largest_rows: int | None
    steps: int
    remat: bool

    @property
    def tokens(self) -> int:
        """Source and target slots of a batch."""
        return 2 * self.rows * self.length

    @property
    def utilisation(self) -> float | None:
        """Model FLOPs a second, divided by the peak; None without an estimate."""
        if self.estimate is None or not self.peak_flops:
            return None
        return self.flops / self.estimate.seconds / self.peak_flops


def make_plan(
    config: Config, target: Target, *, length: int | None = None, largest_batch: bool = True
) -> Plan:
    """Compiles the recipe's training step and decoding for the target, and reads the results.

    Args:
        config: the recipe.
        target: the devices.
        length: tokens of every sentence of the batch; default: `batch.max_length`, which takes
            the most memory.
        largest_batch: also search for the largest batch that fits, which takes a few more
            compilations.

    Raises:
        UserError: the mesh does not fit the devices, or the batch is too small for the mesh.
    """
    planner = Planner(config, target)
    config, train = planner.config, planner.config.train
    length = length or config.batch.max_length
    if length > config.model.max_length:
        raise UserError(
            f"--plan_length={length}: the model is built for model.max_length="
            f"{config.model.max_length}"
        )
    rows = planner.rows(length)
    if not rows:
        raise UserError(
            f"batch.tokens={config.batch.tokens} does not hold {planner.row_multiple} row(s) of "
            f"{length} pieces, one for each part of the batch (devices along data x fsdp, times "
            f"train.accumulate); set it to at least {planner.row_multiple * length}"
        )
    step = planner.train_step(rows, length)
    decode = planner.decode(config.decode, length)
    module = parse(step.text) if step.text else None
    device, count = target.device, len(target.devices)
    flops = train_step_flops(config.model, rows, length)
    time = None
    if module and device:
        time = estimate(module, device, count, target.bounds)
        time = time or roofline(device, flops / count, step.accessed)
    return Plan(
        target=target.text,
        mesh=dict(planner.mesh.shape),
        num_devices=count,
        num_params=api.num_params(config.model),
        param_bytes=planner.bytes_per_device(planner.state.params),
        state_bytes=planner.bytes_per_device(planner.state),
        fsdp_state_bytes=planner.state_bytes_with_fsdp(),
        memory=target.memory,
        rows=rows,
        length=length,
        train=step,
        decode=decode,
        evaluation=evaluation(planner, length),
        own_param_bytes=planner.param_bytes_of_one_process(),
        collectives=by_kind(module, count) if module else {},
        flops=flops,
        peak_flops=device.flops * count if device else None,
        estimate=time,
        breakdown=breakdown(module, device) if module and device else {},
        largest_rows=largest_rows(planner, step, length) if largest_batch else None,
        steps=train.steps,
        remat=config.model.remat,
    )


def evaluation(planner: Planner, length: int) -> Program:
    """Decoding of a batch between training steps, with the training state in memory."""
    program = planner.decode(while_training(planner.config.decode), length)
    state = planner.bytes_per_device(planner.state)
    used = program.bytes + state - planner.bytes_per_device(planner.state.eval_params)
    memory = planner.target.memory
    return replace(program, bytes=used, fits=program.fits and (memory is None or used <= memory))


def largest_rows(planner: Planner, step: Program, length: int) -> int | None:
    """B of the largest batch of this length that fits; None if the device's memory is unknown.

    Args:
        planner: compiles for the device.
        step: a compiled training step of that length, where the search starts.
        length: tokens of a sentence.
    """
    memory = planner.target.memory
    if memory is None:
        return None
    state = planner.bytes_per_device(planner.state)
    if state >= memory:
        return 0
    known = {step.rows: step.fits}

    def fits(rows: int) -> bool:
        if rows not in known:
            known[rows] = planner.train_step(rows, length).fits
        return known[rows]

    guess = guess_from(step.rows, step.bytes, state, memory)
    return largest_that_fits(fits, guess, planner.row_multiple, tolerance=0.1)
