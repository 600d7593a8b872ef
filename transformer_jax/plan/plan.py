"""A recipe's plan: what its programs need on given devices, and how long they should take."""

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
    """What is known before anything runs. Bytes are of one device, FLOPs of all together.

    Attributes:
        target: the devices, in words.
        mesh: axis -> devices along it.
        num_devices: all of them.
        num_params: of the model.
        param_bytes: parameters on the fullest device.
        state_bytes: parameters, optimizer and average on it.
        fsdp_state_bytes: as much, if all devices stood along `fsdp`.
        memory: what a device has; None = it does not say.
        rows: B of the training step's batch.
        length: pieces of its sentences, on either side.
        train: the training step.
        decode: the search of a batch of sentences of `length`, by `eval.py`.
        evaluation: as much between training steps; its bytes count the rest of the training
            state, which stays where it is.
        own_param_bytes: parameters on a device where one process translates by itself.
        collectives: of a training step: kind -> (how many, bytes).
        flops: that a training step needs.
        peak_flops: a second, of all devices; None = not published here.
        estimate: of a training step's time; None = nothing is known of the device.
        breakdown: of its computing, in seconds: part of the model -> kind of work; {} = unknown.
        largest_rows: of the batches that fit; None = not looked for.
        steps: of the recipe.
        remat: whether the recipe has it.
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
        """Model FLOPs a second over the peak; None without an estimate."""
        if self.estimate is None or not self.peak_flops:
            return None
        return self.flops / self.estimate.seconds / self.peak_flops


def make_plan(
    config: Config, target: Target, *, length: int = 0, largest_batch: bool = True
) -> Plan:
    """Compiles the recipe's training step and search for the target, and reads what came out.

    Args:
        config: the recipe.
        target: the devices.
        length: pieces of every sentence of the batch; 0 = `batch.max_length`, which takes the
            most memory.
        largest_batch: also look for it, which takes some more compilations.

    Raises:
        UserError: the mesh does not fit the devices, or the token budget not the mesh.
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
    """The search of a batch between training steps, with the whole training state in memory."""
    program = planner.decode(while_training(planner.config.decode), length)
    state = planner.bytes_per_device(planner.state)
    used = program.bytes + state - planner.bytes_per_device(planner.state.eval_params)
    memory = planner.target.memory
    return replace(program, bytes=used, fits=program.fits and (memory is None or used <= memory))


def largest_rows(planner: Planner, step: Program, length: int) -> int | None:
    """B of the largest batch of this length that fits; None where the device says no memory.

    Args:
        planner: compiles for the device.
        step: a training step of that length, as compiled, from which the search sets out.
        length: pieces of a sentence.
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
