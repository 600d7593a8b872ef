"""The training of a model on a mesh: its state and its step."""

import copy
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from transformer_jax.config import TrainConfig
from transformer_jax.data.batch_shapes import Shape
from transformer_jax.data.batches import Share
from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.models.api import Params
from transformer_jax.models.calibration import with_alphas
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.flops import train_step_flops
from transformer_jax.models.paths import MEASURED, by_path, overlaid, subset, trained_paths
from transformer_jax.optimizers.optimizers import make_optimizer
from transformer_jax.parallel.mesh import (
    activations_on,
    batch_devices,
    batch_sharding,
    kept_sharding,
    process_share,
    replicated,
    shapes_on,
    shardings_of,
)
from transformer_jax.runs.pretrained import TEACHER, open_named
from transformer_jax.training.ahead import Ahead, Program
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import (
    Batch,
    Horizon,
    Loss,
    Metrics,
    Objective,
    gradients_like,
    make_train_step,
)

_LOGGER = logging.getLogger(__name__)

_UPDATE = "update"
#: Batches on which the factors of `model.quantize` are measured: some thousand sentences.
_MEASURED_BATCHES = 8
#: Steps that are timed: at most so many, and none after so many seconds.
_MOST_TIMED, _ENOUGH_SECONDS = 5, 1.0


class Programs:
    """What a trainer compiles, and the shapes of its state.

    Attributes:
        trained: the paths of the trained parameters.
        abstract: shapes, dtypes and shardings of the state.
        gradient: those of what `step.gradient` gives.
        step: see `make_train_step`.
        init: given parameters -> the state before the first step; they are donated.
    """

    def __init__(
        self, model: ModelConfig, train: TrainConfig, mesh: Mesh, loss: Loss | None
    ) -> None:
        params, everywhere = api.abstract_params(model, mesh), replicated(mesh)
        self.trained = trained_paths(train.frozen, params)

        def optimizer_of(horizon: Horizon) -> optax.GradientTransformation:
            schedule = train.schedule.build(model.d_model, *horizon)
            return make_optimizer(train.optimizer, schedule, train.clip_norm)

        optimizer = optimizer_of(horizon_of(train))

        def new_state(given: Params) -> TrainState:
            params = api.init(model, jax.random.key(train.seed))
            replaced = {name: params[name] for name in given}
            params |= jax.tree.map(lambda new, old: old.astype(new.dtype), replaced, given)
            trained = subset(params, self.trained)
            # In bfloat16 the small steps of averages would be rounded away.
            averages = jax.tree.map(lambda x: jnp.array(x, jnp.float32), trained)
            return TrainState(
                step=jnp.zeros((), jnp.int32),
                params=params,
                opt_state=optimizer.init(averages),
                ema={} if train.ema_decay is None else averages,
                skipped=jnp.zeros((), jnp.int32),
                skipped_in_a_row=jnp.zeros((), jnp.int32),
            )

        shapes: TrainState = jax.eval_shape(new_state, {})
        trained = subset(params, self.trained)
        kept = jax.tree.map(kept_sharding, trained)
        opt_state = optax.tree.map_params(
            optimizer,
            # Adafactor's factored statistics have other shapes than parameters: not split.
            lambda leaf, sharding, shape: sharding if leaf.shape == shape.shape else everywhere,
            shapes.opt_state,
            kept,
            trained,
            transform_non_params=lambda _: everywhere,
        )
        ema = kept if shapes.ema else {}
        params = overlaid(shardings_of(params), kept)
        shardings = TrainState(everywhere, params, opt_state, ema, everywhere, everywhere)
        self.abstract: TrainState = shapes_on(shapes, shardings)
        self.gradient = gradients_like(shapes_on(trained, kept))
        objective = Objective(model, train, self.trained, loss)
        self.step = make_train_step(objective, optimizer_of, mesh, shardings)
        self.init = jax.jit(new_state, out_shardings=shardings, donate_argnums=0)


def horizon_of(train: TrainConfig) -> Horizon:
    """The length of a training."""
    return Horizon(np.float32(train.steps), np.float32(train.schedule.warmup_steps))


class Trainer:
    """What the configs of a model and of its training determine on a mesh.

    Raises:
        UserError: `model.quantize` needs a trained model; or a setting is of another loss.

    Attributes:
        model, train, mesh: as given; `train` with the length of `with_length`.
        trained: the paths of the trained parameters.
        abstract: shapes, dtypes and shardings of the state; a checkpoint is restored into it.
        ahead: the programs that are compiled before they are needed.
    """

    def __init__(
        self, model: ModelConfig, train: TrainConfig, mesh: Mesh, loss: Loss | None = None
    ) -> None:
        if model.quantize.measures and not train.init_from:
            raise UserError(
                "model.quantize=int8 measures the activations of a trained model: train it with "
                "model.quantize=none, then go on with train.init_from=FOLDER"
            )
        self.model, self.train, self.mesh = model, train, mesh
        self._has_own_loss = loss is not None
        for key in ("label_smoothing", "alignment_weight", "teacher") if loss else ():
            if (value := getattr(train, key)) != getattr(TrainConfig(), key):
                raise UserError(f"train.{key}={value!r} has no effect with a loss of one's own")
        programs = Programs(model, train, mesh, loss)
        self.trained, self.abstract = programs.trained, programs.abstract
        self._gradient, self._init, self._step = programs.gradient, programs.init, programs.step
        self._in_halves = mesh.devices.flat[0].platform == "cpu"
        self.ahead = Ahead()
        self._flops_of = functools.cache(partial(train_step_flops, model))

    @property
    def schedule(self) -> optax.Schedule:
        """step -> learning rate."""
        return self.train.schedule.build(self.model.d_model, self.train.steps)

    @property
    def horizon(self) -> Horizon:
        """What a compiled step takes beside the state and the batch."""
        return horizon_of(self.train)

    def share_of_peak(self, peak: float, shapes: Iterable[Shape], seconds: float) -> float:
        """What steps on a process's batches (B, S, T), padding included, used of the devices."""
        hosts = self.share.num_hosts
        flops = sum(self._flops_of(hosts * rows, *lengths) for rows, *lengths in shapes)
        return flops / seconds / peak

    @functools.cached_property
    def share(self) -> Share:
        """The rows of each batch that this process makes."""
        multiple = batch_devices(self.mesh) * self.train.accumulate
        return Share(*process_share(self.mesh), multiple)

    def with_length(self, train: TrainConfig) -> "Trainer":
        """This trainer, with its compiled step, for a training that differs in length alone.

        Args:
            train: as the own one, but for the steps and the warm-up.
        """
        other = copy.copy(self)
        other.train = train
        return other

    def describe(self) -> None:
        """Logs the size of the model, and where it is trained."""
        sizes = {path: leaf.size for path, leaf in by_path(self.abstract.params).items()}
        total, trained = sum(sizes.values()), sum(sizes[path] for path in self.trained)
        device = self.mesh.devices.flat[0]
        _LOGGER.info(
            f"{total:,} parameters{f' ({trained:,} trained)' if trained < total else ''} on "
            f"{self.mesh.size} {device.platform} device(s)"
        )
        steps, warmup = self.train.steps, self.train.schedule.warmup_steps
        if steps <= warmup:
            _LOGGER.warning(
                f"train.steps={steps} ends within the warm-up of train.schedule."
                f"warmup_steps={warmup}: the learning rate does not reach its peak; lower "
                "warmup_steps"
            )

    def place(self, batch: Mapping[str, np.ndarray]) -> Batch:
        """Puts this process's rows on its devices, as its part of the global batch."""
        sharding = batch_sharding(self.mesh)
        rows = len(batch["target"]) * self.share.num_hosts
        if rows % self.share.row_multiple:
            raise ValueError(
                f"a batch of {rows} rows does not divide into {self.share.row_multiple} parts "
                "(devices along data x fsdp, times train.accumulate)"
            )
        keys = ["source", "source_mask", "target", "target_mask"]
        keys += [] if self.train.alignment_weight is None else ["alignment"]
        keys = list(batch) if self._has_own_loss else keys
        place = partial(jax.make_array_from_process_local_data, sharding)
        placed = {key: place(batch[key], (rows, *batch[key].shape[1:])) for key in keys}
        return placed | self._soft_labels(placed)

    @functools.cached_property
    def _soft_labels(self) -> Callable[[Batch], Batch]:
        """What the teacher adds to a batch; it is read at the first one, as a plan has none."""
        teacher = self.train.teacher
        if not teacher.pieces:
            return lambda batch: {}
        run = open_named(TEACHER, teacher.run)
        model = run.model

        def label(params: Params, batch: Batch) -> Batch:
            with activations_on(self.mesh):
                return teacher.soft_labels(model, params, batch)

        compiled = jax.jit(label, out_shardings=batch_sharding(self.mesh))
        return partial(compiled, run.params("best", self.mesh))

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """One step; see `make_train_step`."""
        rows, source_length = batch["source"].shape
        shape = (rows, source_length, batch["target"].shape[1])
        if not self._in_halves:
            return self.ahead.get(shape, self._step.whole)(state, batch, self.horizon)
        gradient = self.ahead.get(shape, self._step.gradient)
        update = self.ahead.get(_UPDATE, self._step.update)
        return update(state, gradient(state.params, state.step, batch), self.horizon)

    def measure_step(
        self, rows: dict[str, np.ndarray], clock: Callable[[], float] = time.perf_counter
    ) -> tuple[float, float]:
        """Seconds that the step of a batch took to compile, and that it takes.

        The shortest of a few steps counts: what else the machine does makes steps longer, never
        shorter. Their results are discarded. Several processes make the same call.

        Args:
            rows: this process's rows of the batch.
            clock: seconds from any beginning.
        """
        times = [clock()]  # the step compiles in a thread, beside what follows
        state, batch = self.init(), self.place(rows)
        most = _MOST_TIMED + 2
        while len(times) < 3 or (len(times) < most and clock() - times[1] < _ENOUGH_SECONDS):
            state, metrics = self.step(state, batch)  # the first one compiles
            jax.block_until_ready(metrics)
            times.append(clock())
        first, *others = np.diff(times).tolist()
        return max(0.0, first - min(others)), min(others)

    def compiling_ahead(self, shapes: Iterable[Shape]) -> AbstractContextManager[None]:
        """Compiles the steps of global batches (B, S, T) in threads, the first one first.

        What runs, and in which order, stays the same.
        """
        state, steps = self.abstract, []
        for shape in shapes:
            batch = self.abstract_batch(shape)
            lower = partial(self.lower, state, batch)
            if self._in_halves:
                lower = partial(self._step.gradient.lower, state.params, state.step, batch)
            steps.append((shape, lower))
        first: list[Program] = [*steps[:1]]
        if self._in_halves:
            lower = partial(self._step.update.lower, state, self._gradient, self.horizon)
            first.append((_UPDATE, lower))
        return self.ahead.compiling(first, steps[1:])

    def abstract_batch(self, shape: Shape) -> dict[str, jax.ShapeDtypeStruct]:
        """A global batch (B, S, T), as shapes with shardings."""
        rows, *lengths = shape
        sharding, batch = batch_sharding(self.mesh), {}
        for side, length in zip(("source", "target"), lengths, strict=True):
            for name, dtype in ((side, jnp.int32), (f"{side}_mask", jnp.bool_)):
                batch[name] = jax.ShapeDtypeStruct((rows, length), dtype, sharding=sharding)
        if self.train.alignment_weight is not None:
            links = rows, *reversed(lengths)
            batch["alignment"] = jax.ShapeDtypeStruct(links, jnp.bool_, sharding=sharding)
        if count := self.train.teacher.pieces:
            soft = rows, lengths[1], count
            for name, dtype in (("soft_ids", jnp.int32), ("soft_shares", jnp.float32)):
                batch[name] = jax.ShapeDtypeStruct(soft, dtype, sharding=sharding)
        return batch

    def lower(self, state: TrainState, batch: Any) -> Any:
        """The step as one program, lowered for shapes; see `jax.jit(...).lower`."""
        return self._step.whole.lower(state, batch, self.horizon)

    def init(self, given: Params | None = None) -> TrainState:
        """The state before the first step, made on its devices.

        Args:
            given: parameters to begin with, in place of random ones; an adapter's may be missing.
                Their memory is used again: don't use them afterwards.
        """
        state: TrainState = self._init(given or {})
        return state

    def measured(self, given: Params, batches: Callable[[int], Iterator[Any]]) -> Params:
        """Parameters to begin with, with the factors that `model.quantize` needs of them.

        Args:
            given: of a model whose `model.quantize` may be another.
            batches: this process's rows of the batches from a position on.
        """
        if not self.model.quantize.measures:
            return {name: part for name, part in given.items() if name != MEASURED}
        first = itertools.islice(batches(0), _MEASURED_BATCHES)
        return with_alphas(self.model, given, map(self.place, first))
