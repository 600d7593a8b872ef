"""The training step: the mean loss over the target tokens of the global batch, and one update."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from transformer_jax.config import TrainConfig
from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.paths import overlaid, subset
from transformer_jax.ops.platform import by_platform
from transformer_jax.parallel.exchange import RowGradient, sum_over_devices
from transformer_jax.parallel.mesh import activations_on, batch_sharding, only_data, replicated
from transformer_jax.training.state import TrainState

_LOGGER = logging.getLogger(__name__)

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


#: Platform -> options for the compiler of the step. XLA would join the products that make queries,
#: keys and values on a GPU, and copy their results apart, and their gradients together. To choose
#: the fastest, it would also compile up to 40 kernels of Triton for each product, and several forms
#: of each fusion: minutes before the first step. It still chooses among the algorithms of cuBLAS.
COMPILER_OPTIONS: dict[str, dict[str, Any]] = {
    "gpu": {
        "xla_gpu_dot_merger_threshold_mb": 0,
        "xla_gpu_enable_triton_gemm": False,
        "xla_gpu_experimental_enable_fusion_autotuner": False,
    }
}


def options_for(mesh: Mesh) -> dict[str, Any]:
    """Those `COMPILER_OPTIONS` which the compiler takes: their names change with its version."""
    device = next(each for each in mesh.devices.flat if each.process_index == jax.process_index())
    wanted = COMPILER_OPTIONS.get(device.platform, {})
    trial = jax.jit(lambda: 0, out_shardings=jax.sharding.SingleDeviceSharding(device))

    def takes(options: dict[str, Any]) -> bool:
        try:
            trial.lower().compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            _LOGGER.info("the compiler does not take %s: %s", ", ".join(options), error)
            return False
        return True

    if not wanted or takes(wanted):
        return wanted
    return {name: value for name, value in wanted.items() if takes({name: value})}


#: (params, batch, dropout key or None) -> sums over the target tokens of the batch, as those of
#: `models.api.loss`: (of the loss, of the negative log-likelihood, their number).
Loss = Callable[[Any, Batch, Any], tuple[jax.Array, jax.Array, jax.Array]]


class Objective(NamedTuple):
    """What a training minimises: the loss of a model, by its trained parameters."""

    model: ModelConfig
    train: TrainConfig
    trained: frozenset[str]  #: their paths
    loss: Loss | None = None  #: one of the caller's own; None: `models.api.loss`


class Horizon(NamedTuple):
    """The length of a training, which its compiled step takes as an argument: float32 scalars."""

    steps: Any
    warmup_steps: Any


def sum_gradients(
    objective: Objective, params: Any, batch: Batch, rng: jax.Array | None
) -> tuple[Any, Metrics]:
    """The gradient of the summed loss over the batch's target tokens in float32, and its sums.

    It is with respect to the trained parameters, and has only their leaves.

    With `train.accumulate` = k the rows are cut into k parts, whose sums are added.

    Args:
        objective: what is minimised.
        params: all parameters.
        batch: see `models.api.loss`.
        rng: the dropout key; None: nothing is dropped.
    """
    model, train, trained, loss = objective
    options = {key: getattr(train, key) for key in ("label_smoothing", "alignment_weight")}
    loss, count = loss or partial(_loss_of, model, options), train.accumulate

    def part_gradient(part: Batch, key: jax.Array | None) -> tuple[Any, Metrics]:
        def sums_of(part_of_params: Any) -> tuple[jax.Array, Metrics]:
            whole = overlaid(params, part_of_params)
            sums = loss(whole, part, key)
            if not isinstance(sums, tuple) or [jnp.shape(each) for each in sums] != [(), (), ()]:
                raise UserError(
                    "loss must return three scalars: the sums of the loss and of the negative "
                    "log-likelihood over the target tokens, and their number"
                )
            return sums[0], dict(zip(("loss_sum", "nll_sum", "tokens"), sums, strict=True))

        return jax.grad(sums_of, has_aux=True)(subset(params, trained))

    if count == 1:
        return part_gradient(batch, rng)
    # Row b goes to part b % count: a batch sharded over devices stays sharded.
    parts = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(-1, count, *x.shape[1:]), 0, 1), batch)

    def body(total: Any, indexed: tuple[jax.Array, Batch]) -> tuple[Any, None]:
        index, part = indexed
        key = None if rng is None else jax.random.fold_in(rng, index)
        return jax.tree.map(jnp.add, total, part_gradient(part, key)), None

    first = jax.tree.map(lambda x: x[0], parts)
    like = jax.eval_shape(part_gradient, first, rng)
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return jax.lax.scan(body, zero, (jnp.arange(count), parts))[0]


def _loss_of(model: ModelConfig, options: Any, params: Any, batch: Batch, key: Any) -> Any:
    return api.loss(model, params, batch, rng=key, **options)


def mean_of(total: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
    """`sum_gradients` of a whole batch -> the gradient of its mean loss, and the sums."""
    grads, sums = total
    scale = _scale(sums)
    return jax.tree.map(lambda g: g * scale, grads), sums


def _scale(sums: Metrics) -> jax.Array:
    return 1.0 / jnp.maximum(sums["tokens"], 1.0)


def norm_of(total: tuple[Any, Metrics], grads: Any) -> jax.Array:
    """The Euclidean norm of all gradients of `mean_of(total)`, on one device."""
    return by_platform(_norm, total, grads, cuda=True, other=False)


def _norm(total: tuple[Any, Metrics], grads: Any, joined: bool) -> jax.Array:
    """A GPU's compiler takes two kernels for the sum of a matrix and one for that of a vector.

    That is more than the layers have. So there all vectors are joined with the sums of the rows of
    all matrices, before they are scaled: a product with the scale would be one more kernel each.
    (So a norm above 1e19 of the sum, not of the mean, is infinite.)
    """
    if not joined:
        return optax.global_norm(grads)
    leaves = jax.tree.leaves(total[0])
    rows = [jnp.square(x).sum(-1).ravel() for x in leaves if x.ndim > 1]
    vectors = [x.ravel() for x in leaves if x.ndim < 2]
    squares = [*rows, jnp.square(jnp.concatenate(vectors))] if vectors else rows
    # Without the barrier the sum of what is joined would become a sum of sums.
    return _scale(total[1]) * jnp.sqrt(jax.lax.optimization_barrier(jnp.concatenate(squares)).sum())


class Step(NamedTuple):
    """The programs of a training step, jitted.

    On a CPU a training runs the two halves: only the gradient depends on the shape of the batch, so
    it alone is compiled for each shape. On accelerators it runs the whole, which is what a plan
    compiles: one program keeps the gradients in memory for less of its time than two do.
    """

    gradient: Any  #: (params, step, batch) -> `mean_of`
    update: Any  #: (state, `mean_of`, horizon) -> (state, metrics); the old state is donated
    whole: Any  #: both: (state, batch, horizon) -> (state, metrics)


def gradients_like(trained: Any) -> tuple[Any, dict[str, jax.ShapeDtypeStruct]]:
    """The shapes of `mean_of`, from those of the trained parameters."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    gradient = jax.tree.map(lambda x: x.update(dtype=jnp.float32), trained)
    return gradient, {"loss_sum": scalar, "nll_sum": scalar, "tokens": scalar}


def make_train_step(
    objective: Objective,
    optimizer: Callable[[Horizon], optax.GradientTransformation],
    mesh: Mesh,
    shardings: TrainState,
) -> Step:
    """The step of a model on a mesh.

    `optimizer` gives the optimizer of a horizon, whose numbers are traced.

    A step whose loss or gradient is not finite is counted, and changes neither parameters,
    optimizer state nor average.

    Metrics are scalars over the global batch, float32 except for the counts: `loss_sum` and
    `nll_sum` in nats, `tokens`, `grad_norm` (before clipping), `finite` (bool), `skipped`
    and `skipped_in_a_row` (as in the state).
    """
    model, train, trained, _ = objective
    jit = partial(jax.jit, compiler_options=options_for(mesh))
    of_gradients = subset(shardings.params, trained)
    row_gradient: RowGradient = partial(sum_gradients, objective)
    if only_data(mesh):
        row_gradient = sum_over_devices(
            row_gradient,
            shardings.params,
            of_gradients,
            used_as=api.product_dtypes(model),
            reduce_dtype=train.reduce_dtype,
        )

    everywhere, rows = replicated(mesh), batch_sharding(mesh)

    def summed(params: Any, step: jax.Array, batch: Batch) -> tuple[Any, Metrics]:
        rng = jax.random.fold_in(jax.random.key(train.seed), step)
        with activations_on(mesh):
            return row_gradient(params, batch, rng)

    def gradient(params: Any, step: jax.Array, batch: Batch) -> tuple[Any, Metrics]:
        return mean_of(summed(params, step, batch))

    def update(
        state: TrainState,
        gradient: tuple[Any, Metrics],
        horizon: Horizon,
        norm: jax.Array | None = None,
    ) -> tuple[TrainState, Metrics]:
        grads, metrics = gradient
        metrics["grad_norm"] = optax.global_norm(grads) if norm is None else norm
        finite = jnp.isfinite(metrics["loss_sum"]) & jnp.isfinite(metrics["grad_norm"])

        def unless_skipped(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

        old = subset(state.params, trained)
        updates, opt_state = optimizer(horizon).update(grads, state.opt_state, old)
        new = unless_skipped(optax.apply_updates(old, updates), old)
        ema = state.ema
        if train.ema_decay is not None:
            # A smaller decay at first, so that the average forgets the initial parameters.
            decay = jnp.minimum(train.ema_decay, (1.0 + state.step) / (10.0 + state.step))
            moved = jax.tree.map(lambda e, p: e + (1.0 - decay) * (p - e), ema, new)
            ema = unless_skipped(moved, ema)
        skipped = state.skipped + jnp.where(finite, 0, 1)
        in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
        metrics |= {"finite": finite, "skipped": skipped, "skipped_in_a_row": in_a_row}
        new_state = TrainState(
            step=state.step + 1,
            params=overlaid(state.params, new),
            opt_state=unless_skipped(opt_state, state.opt_state),
            ema=ema,
            skipped=skipped,
            skipped_in_a_row=in_a_row,
        )
        return new_state, metrics

    def step(state: TrainState, batch: Batch, horizon: Horizon) -> tuple[TrainState, Metrics]:
        total = summed(state.params, state.step, batch)
        mean = mean_of(total)
        norm = norm_of(total, mean[0]) if mesh.size == 1 else None
        return update(state, mean, horizon, norm)

    jit_change = partial(jit, out_shardings=(shardings, everywhere), donate_argnums=0)
    mean = of_gradients, everywhere
    return Step(
        gradient=jit(
            gradient, in_shardings=(shardings.params, everywhere, rows), out_shardings=mean
        ),
        update=jit_change(update, in_shardings=(shardings, mean, everywhere)),
        whole=jit_change(step, in_shardings=(shardings, rows, everywhere)),
    )
