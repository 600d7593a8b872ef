"""The training step: the mean loss over the target tokens of the global batch, and one update."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import TrainConfig
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.paths import overlaid
from transformer_jax.parallel.mesh import (
    activations_on,
    batch_sharding,
    only_data,
    own_rows_on,
    replicated,
)
from transformer_jax.training.frozen import trained_part
from transformer_jax.training.state import TrainState

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


#: Platform -> options for the compiler of the step. XLA would join the products that make queries,
#: keys and values on a GPU, and copy their results apart, and their gradients together.
_COMPILER_OPTIONS: dict[str, dict[str, Any]] = {"gpu": {"xla_gpu_dot_merger_threshold_mb": 0}}


class Horizon(NamedTuple):
    """The length of a training, which its compiled step takes as an argument: float32 scalars."""

    steps: Any
    warmup_steps: Any


def gradients(
    model: ModelConfig, train: TrainConfig, params: Any, batch: Batch, rng: jax.Array | None
) -> tuple[Any, Metrics]:
    """The gradient of the mean loss over the batch's target tokens in float32, and its sums.

    It is with respect to the trained parameters, and has only their leaves.

    With `train.accumulate` = k the rows are cut into k parts. Their sums are added before the one
    division, so the result is the gradient of the whole batch.
    """
    return _divided(_summed(model, train, params, batch, rng))


def _divided(total: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
    grads, sums = total
    scale = 1.0 / jnp.maximum(sums["tokens"], 1.0)
    return jax.tree.map(lambda g: g * scale, grads), sums


def _summed(
    model: ModelConfig, train: TrainConfig, params: Any, batch: Batch, rng: jax.Array | None
) -> tuple[Any, Metrics]:
    """`gradients` before the division: of the summed loss."""

    def part_gradient(part: Batch, key: jax.Array | None) -> tuple[Any, Metrics]:
        def objective(trained: Any) -> tuple[jax.Array, Metrics]:
            loss_sum, nll_sum, tokens = api.loss(
                model,
                overlaid(params, trained),
                part,
                label_smoothing=train.label_smoothing,
                rng=key,
            )
            return loss_sum, {"loss_sum": loss_sum, "nll_sum": nll_sum, "tokens": tokens}

        return jax.grad(objective, has_aux=True)(trained_part(train, params))

    if train.accumulate == 1:
        total = part_gradient(batch, rng)
    else:
        count = train.accumulate
        # Row b goes to part b % count: a batch sharded over devices stays sharded.
        parts = jax.tree.map(
            lambda x: jnp.swapaxes(x.reshape(-1, count, *x.shape[1:]), 0, 1), batch
        )

        def body(total: Any, indexed: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            index, part = indexed
            key = None if rng is None else jax.random.fold_in(rng, index)
            return jax.tree.map(jnp.add, total, part_gradient(part, key)), None

        first = jax.tree.map(lambda x: x[0], parts)
        zero = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part_gradient, first, rng)
        )
        total, _ = jax.lax.scan(body, zero, (jnp.arange(count), parts))
    return total


def _summed_by_devices(
    model: ModelConfig,
    train: TrainConfig,
    mesh: Mesh,
    shardings: Any,
    params: Any,
    batch: Batch,
    rng: jax.Array,
) -> tuple[Any, Metrics]:
    """`_summed`, by each device for its own rows, with parameters of which each has a part.

    A device gets the other parts of the parameters, in the dtype in which they are used; then every
    device adds up its part of the gradients. XLA's own partitioning would send parameters in
    float32, and add the gradients of tied embeddings one by one, and in float32.

    Args:
        mesh: splits nothing but the rows.
        shardings: of the parameters, as `parallel.mesh.kept_sharding`.
    """
    specs = jax.tree.map(lambda sharding: sharding.spec, shardings)

    def add(gradient: jax.Array, sharding: NamedSharding) -> jax.Array:
        low = gradient.astype(train.reduce_dtype)
        if (axis := _split_axis(sharding)) is None:
            low = jax.lax.psum(low, "data")
        else:
            low = jax.lax.psum_scatter(low, "data", scatter_dimension=axis, tiled=True)
        return low.astype(gradient.dtype)

    def of_own_rows(params: Any, batch: Batch, rng: jax.Array) -> tuple[Any, Metrics]:
        with own_rows_on(mesh):
            # Without the barrier a TPU's compiler sends a matrix again for each of its layouts.
            sent = jax.lax.optimization_barrier(_sent(params, shardings, api.product_dtypes(model)))
            params = jax.tree.map(lambda x, part: x.astype(part.dtype), sent, params)
            grads, sums = _summed(model, train, params, batch, rng)
        grads = jax.tree.map(add, grads, trained_part(train, shardings))
        return grads, jax.lax.psum(sums, "data")

    everywhere = PartitionSpec()
    # Types that say along which axes values differ would make jax.grad add up each gradient itself.
    by_rows = jax.shard_map(
        of_own_rows,
        mesh=mesh,
        in_specs=(specs, PartitionSpec("data"), everywhere),
        out_specs=(trained_part(train, specs), everywhere),
        check_vma=False,
    )
    return by_rows(params, batch, rng)


def _sent(params: Any, shardings: Any, dtypes: Any) -> Any:
    """All of every parameter, from its parts, in a dtype.

    Those of one dtype are sent as one array: with many devices a part is small, and a TPU's
    compiler replaces the sending of small parts by an all-reduce, which takes twice the time.
    """
    leaves, tree = jax.tree.flatten(params)
    used = jax.tree.leaves(dtypes)
    axes = map(_split_axis, jax.tree.leaves(shardings))
    split = {i: axis for i, axis in enumerate(axes) if axis is not None}
    for dtype in dict.fromkeys(used[i] for i in split):
        chosen = [i for i in split if used[i] == dtype]
        own = jnp.concatenate([leaves[i].astype(dtype).ravel() for i in chosen])
        ends = np.cumsum([leaves[i].size for i in chosen])
        by_device = jax.lax.all_gather(own, "data")
        for i, parts in zip(chosen, jnp.split(by_device, ends[:-1], axis=1), strict=True):
            leaves[i] = _joined(parts.reshape(-1, *leaves[i].shape), split[i])
    return jax.tree.unflatten(tree, leaves)


def _joined(parts: jax.Array, axis: int) -> jax.Array:
    """[number of parts, ...] -> the parts one after the other along an axis of theirs."""
    count, *shape = parts.shape
    shape[axis] *= count
    return jnp.moveaxis(parts, 0, axis).reshape(shape)


def _split_axis(sharding: NamedSharding) -> int | None:
    """The axis of which each device has a part; None: each has all of the array."""
    spec = tuple(sharding.spec)
    return spec.index("data") if "data" in spec else None


class Step(NamedTuple):
    """The programs of a training step, jitted.

    On a CPU a training runs the two halves: only the gradient depends on the shape of the batch, so
    it alone is compiled for each shape. On accelerators it runs the whole, which is what a plan
    compiles: one program keeps the gradients in memory for less of its time than two do.
    """

    gradient: Any  #: (params, step, batch) -> `gradients`
    update: Any  #: (state, `gradients`, horizon) -> (state, metrics); the old state is donated
    whole: Any  #: both: (state, batch, horizon) -> (state, metrics)


def gradients_like(trained: Any) -> tuple[Any, dict[str, jax.ShapeDtypeStruct]]:
    """The shapes of `gradients`, from those of the trained parameters."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    gradient = jax.tree.map(lambda x: x.update(dtype=jnp.float32), trained)
    return gradient, {"loss_sum": scalar, "nll_sum": scalar, "tokens": scalar}


def make_train_step(
    model: ModelConfig,
    train: TrainConfig,
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

    def gradient(params: Any, step: jax.Array, batch: Batch) -> tuple[Any, Metrics]:
        rng = jax.random.fold_in(jax.random.key(train.seed), step)
        if only_data(mesh):
            total = _summed_by_devices(model, train, mesh, shardings.params, params, batch, rng)
            return _divided(total)
        with activations_on(mesh):
            return gradients(model, train, params, batch, rng)

    def update(
        state: TrainState, gradient: tuple[Any, Metrics], horizon: Horizon
    ) -> tuple[TrainState, Metrics]:
        grads, metrics = gradient
        metrics["grad_norm"] = optax.global_norm(grads)
        finite = jnp.isfinite(metrics["loss_sum"]) & jnp.isfinite(metrics["grad_norm"])

        def unless_skipped(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

        trained = trained_part(train, state.params)
        updates, opt_state = optimizer(horizon).update(grads, state.opt_state, trained)
        trained = unless_skipped(optax.apply_updates(trained, updates), trained)
        ema = state.ema
        if train.ema_decay is not None:
            # A smaller decay at first, so that the average forgets the initial parameters.
            decay = jnp.minimum(train.ema_decay, (1.0 + state.step) / (10.0 + state.step))
            moved = jax.tree.map(lambda e, p: e + (1.0 - decay) * (p - e), ema, trained)
            ema = unless_skipped(moved, ema)
        skipped = state.skipped + jnp.where(finite, 0, 1)
        in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
        metrics |= {"finite": finite, "skipped": skipped, "skipped_in_a_row": in_a_row}
        new_state = TrainState(
            step=state.step + 1,
            params=overlaid(state.params, trained),
            opt_state=unless_skipped(opt_state, state.opt_state),
            ema=ema,
            skipped=skipped,
            skipped_in_a_row=in_a_row,
        )
        return new_state, metrics

    def step(state: TrainState, batch: Batch, horizon: Horizon) -> tuple[TrainState, Metrics]:
        return update(state, gradient(state.params, state.step, batch), horizon)

    everywhere, rows = replicated(mesh), batch_sharding(mesh)
    of_gradients = (trained_part(train, shardings.params), everywhere)
    jit = functools.partial(
        jax.jit, compiler_options=_COMPILER_OPTIONS.get(mesh.devices.flat[0].platform)
    )
    return Step(
        gradient=jit(
            gradient,
            in_shardings=(shardings.params, everywhere, rows),
            out_shardings=of_gradients,
        ),
        update=jit(
            update,
            in_shardings=(shardings, of_gradients, everywhere),
            out_shardings=(shardings, everywhere),
            donate_argnums=0,
        ),
        whole=jit(
            step,
            in_shardings=(shardings, rows, everywhere),
            out_shardings=(shardings, everywhere),
            donate_argnums=0,
        ),
    )
