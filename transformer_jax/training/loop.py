"""The training loop, over any iterator of batches.

Everything that decides the next parameters is in the checkpoint: the state, the
data position (one integer) and the evaluation record. A run that is killed and
started again therefore ends in the parameters of one that never stopped.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig
from transformer_jax.parallel.mesh import MeshConfig, batch_devices, batch_sharding, make_mesh
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.config import TrainConfig
from transformer_jax.training.metrics import MetricsLog
from transformer_jax.training.optimizer import make_optimizer, make_schedule
from transformer_jax.training.state import (
    TrainState,
    abstract_state,
    init_state,
    state_shardings,
)
from transformer_jax.training.step import make_train_step

#: Batches from a position on; position p is the p-th batch the run ever sees.
BatchesFrom = Callable[[int], Iterator[dict[str, np.ndarray]]]
#: Scores of the given parameters; the one called `bleu` picks the best checkpoint.
Evaluate = Callable[[Any, int], dict[str, float]]


@dataclass(frozen=True)
class Record:
    """The run's memory of its evaluations."""

    best_bleu: float = -1.0
    best_step: int = -1
    evaluations_since_best: int = 0


def fit(
    model: ModelConfig,
    train: TrainConfig,
    batches: BatchesFrom,
    *,
    workdir: str | Path | None = None,
    mesh: MeshConfig | None = None,
    evaluate: Evaluate | None = None,
    meta: dict[str, Any] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: bool = True,
) -> TrainState:
    """Trains until `train.steps`, early stopping, or `should_stop`.

    Args:
        model: the model.
        train: the schedule of the run.
        batches: gives the batches from a position on. Each is a dict of `source`,
            `source_mask`, `target`, `target_mask` (see `models.api.loss`); its
            rows must divide among the mesh's data devices and `train.accumulate`.
        workdir: where checkpoints and metrics go; a run found there is continued.
            None keeps everything in memory.
        mesh: how to lay devices out; default all of them along `data`.
        evaluate: called with (params, step) every `train.evaluate_every` steps.
        meta: a JSON-able dict to store in each checkpoint; a run is continued only
            where its `identity` (of the data, the tokenizer) is the one stored.
        should_stop: asked between steps; True saves and returns.
        progress: draw a progress bar on standard error.

    Returns:
        The last state.

    Raises:
        UserError: the run in `workdir` was trained on other data.
    """
    meta = meta or {}
    began = time.perf_counter()
    device_mesh = make_mesh(mesh or MeshConfig())
    optimizer = make_optimizer(train.optimizer, model.d_model, train.steps)
    shardings = state_shardings(model, optimizer, train.ema_decay > 0, device_mesh)
    checkpoints = None if workdir is None else Checkpoints(workdir, train.keep_checkpoints)
    record = Record()
    start = checkpoints.latest_step() if checkpoints else None
    if checkpoints and start is not None:
        abstract = abstract_state(model, optimizer, ema=train.ema_decay > 0, shardings=shardings)
        state, saved = checkpoints.restore(start, abstract)
        record = Record(**saved["record"])
        _check_identity(saved.get("identity"), meta.get("identity"), workdir)
    else:
        start = 0
        state = init_state(
            model, optimizer, ema=train.ema_decay > 0, seed=train.seed, shardings=shardings
        )
    run = _Run(model, train, device_mesh, checkpoints, workdir, start, progress, began, meta)
    step_fn = make_train_step(model, train, optimizer, device_mesh, shardings)
    iterator = batches(start)
    try:
        for step in range(start + 1, train.steps + 1):
            if _stopped_early(train, record):
                break
            state, metrics = step_fn(state, run.to_device(next(iterator)))
            run.log(step, metrics)
            evaluated_best = False
            if evaluate and (step % train.evaluate_every == 0 or step == train.steps):
                with run.pause():
                    scores = evaluate(state.eval_params, step)
                run.write(step, {f"validation.{k}": v for k, v in scores.items()})
                record, evaluated_best = _update(record, scores, step)
            stopping = should_stop() or _stopped_early(train, record)
            due = step % train.checkpoint_every == 0 or step == train.steps
            if checkpoints and (due or evaluated_best or stopping):
                with run.pause():
                    run.save(step, state, record, best=evaluated_best)
            if stopping:
                break
        if checkpoints:
            checkpoints.wait()
    finally:
        if hasattr(iterator, "close"):
            iterator.close()
        run.close()
        if checkpoints:
            checkpoints.close()
    return state


def _check_identity(
    saved: dict[str, str] | None, now: dict[str, str] | None, workdir: str | Path | None
) -> None:
    for key, value in (now or {}).items():
        if (saved or {}).get(key, value) != value:
            raise UserError(
                f"--workdir={workdir}: the {key} changed since this run was saved, so it cannot be "
                "continued exactly: restore what it was, or use another folder"
            )


def _stopped_early(train: TrainConfig, record: Record) -> bool:
    return bool(train.early_stopping) and record.evaluations_since_best >= train.early_stopping


def _update(record: Record, scores: dict[str, float], step: int) -> tuple[Record, bool]:
    bleu = scores.get("bleu")
    if bleu is None:
        return record, False
    if bleu > record.best_bleu:
        return Record(best_bleu=bleu, best_step=step), True
    return replace(record, evaluations_since_best=record.evaluations_since_best + 1), False


class _Run:
    """What the loop writes and shows: metrics, the bar, checkpoints."""

    def __init__(
        self,
        model: ModelConfig,
        train: TrainConfig,
        mesh: Mesh,
        checkpoints: Checkpoints | None,
        workdir: str | Path | None,
        start: int,
        progress: bool,
        began: float,
        meta: dict[str, Any],
    ) -> None:
        from tqdm import tqdm

        self._train = train
        self._schedule = make_schedule(train.optimizer, model.d_model, train.steps)
        self._sharding = batch_sharding(mesh)
        self._row_multiple = batch_devices(mesh) * train.accumulate
        self._checkpoints = checkpoints
        self._log = None if workdir is None else MetricsLog(workdir, start)
        self._meta = meta
        self._began: float | None = began
        self._pending: list[dict[str, jax.Array]] = []
        self._interval_start = time.perf_counter()
        self._paused = 0.0
        self._bar = tqdm(
            total=train.steps,
            initial=start,
            unit="step",
            disable=not progress,
            dynamic_ncols=True,
            mininterval=1.0,
            smoothing=0.05,
        )

    def to_device(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        rows = len(batch["target"])
        if rows % self._row_multiple:
            raise ValueError(
                f"a batch of {rows} rows does not divide into {self._row_multiple} parts "
                "(devices along data x fsdp, times train.accumulate)"
            )
        keys = ("source", "source_mask", "target", "target_mask")
        return {
            key: jax.make_array_from_process_local_data(self._sharding, batch[key]) for key in keys
        }

    def log(self, step: int, metrics: dict[str, jax.Array]) -> None:
        # Metrics are read in groups, so that the device never waits for the host.
        self._pending.append(metrics)
        if self._began is not None:
            jax.block_until_ready(metrics)
            seconds = time.perf_counter() - self._began
            self._note(f"first step done {seconds:.1f} s after the loop began")
            self.write(step, {"seconds_to_first_step": round(seconds, 2)})
            self._began = None
            self._interval_start = time.perf_counter()
            self._paused = 0.0
            self._pending.clear()
        elif step % self._train.log_every == 0 or step == self._train.steps:
            self._flush(step)
        self._bar.update()

    def _flush(self, step: int) -> None:
        if not self._pending:
            return
        values = jax.device_get(self._pending)
        self._pending.clear()
        seconds = time.perf_counter() - self._interval_start - self._paused
        self._interval_start, self._paused = time.perf_counter(), 0.0
        tokens = sum(float(v["tokens"]) for v in values)
        loss = sum(float(v["loss_sum"]) for v in values) / max(tokens, 1.0)
        nll = sum(float(v["nll_sum"]) for v in values) / max(tokens, 1.0)
        self.write(
            step,
            {
                "loss": loss,
                "nll": nll,
                "grad_norm": float(values[-1]["grad_norm"]),
                "learning_rate": float(self._schedule(step - 1)),
                "target_tokens_per_second": tokens / seconds,
            },
        )
        self._bar.set_postfix_str(f"loss {loss:.3f}, {tokens / seconds:,.0f} tokens/s")

    def write(self, step: int, values: dict[str, Any]) -> None:
        if self._log:
            self._log.write(step, values)
        if "validation.bleu" in values:
            self._note(f"step {step}: validation BLEU {values['validation.bleu']:.2f}")

    def _note(self, text: str) -> None:
        self._bar.write(text, file=sys.stderr)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Keeps evaluation and saving out of tokens/s."""
        if self._pending:
            jax.block_until_ready(self._pending[-1])
        before = time.perf_counter()
        yield
        self._paused += time.perf_counter() - before

    def save(self, step: int, state: TrainState, record: Record, *, best: bool) -> None:
        assert self._checkpoints is not None
        meta = {**self._meta, "position": step, "record": asdict(record)}
        self._checkpoints.save(step, state, meta, best=best)

    def close(self) -> None:
        self._bar.close()
        if self._log:
            self._log.close()
