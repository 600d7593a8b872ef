"""What the training loop logs and shows: metrics, the progress bar, skipped steps."""

import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from etils import epath

from transformer_jax.config import TrainConfig
from transformer_jax.data.batch_shapes import Shape
from transformer_jax.errors import Diverged
from transformer_jax.runs.metrics import MetricsLog

_LOGGER = logging.getLogger(__name__)

#: Seconds after the first step, beside which programs are compiled and libraries are imported. The
#: time to come is told by the steps after them.
_SETTLING_SECONDS = 30.0

#: Metrics of the batches at positions of the data, such as the share of each corpus.
BatchMetrics = Callable[[range], Mapping[str, float]]


@dataclass
class Reporter:
    """Collects the metrics of the steps and reads them in groups, so the device never waits.

    Attributes:
        train: how often to log, and how many bad steps to allow.
        schedule: the learning rate.
        workdir: where metrics are written; None: nowhere.
        start: the number of steps done before.
        began: when the loop was called, by `time.perf_counter()`.
        prepared: seconds that the run took before.
        batch_metrics: metrics of the data; default: none.
        share_of_peak: of the devices' FLOPs, by the shapes (B, S, T) of batches and the seconds of
            their steps; None: unknown.
        progress: draw a progress bar.
    """

    train: TrainConfig
    schedule: optax.Schedule
    workdir: epath.Path | None
    start: int
    began: float
    prepared: float = 0.0
    batch_metrics: BatchMetrics = lambda positions: {}
    share_of_peak: Callable[[list[Shape], float], float] | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        from tqdm import tqdm

        self._log: MetricsLog | None = None
        if self.workdir is not None:
            self._log = MetricsLog(self.workdir, self.start, self.train.trackers)
        before = self._log.minutes_before if self._log else 0.0
        # The clock when training would have begun.
        self._zero = self.began - self.prepared - 60 * before
        self._pending: list[tuple[int, dict[str, jax.Array]]] = []
        self._paused = 0.0
        self._shapes: list[Shape] = []  #: of the pending steps
        self._known_shapes: set[Shape] = set()
        self._told_from = math.inf  # by the steps logged from then on
        often = 1.0 if sys.stderr.isatty() else 60.0  # a line a minute where nobody watches
        self._bar = tqdm(
            total=self.train.steps,
            initial=self.start,
            disable=not self.progress,
            file=sys.stderr,
            dynamic_ncols=True,
            mininterval=often,
            bar_format="{percentage:3.0f}%|{bar}| step {n_fmt}/{total_fmt}{postfix}",
        )

    def log(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Takes the metrics of a step.

        Raises:
            Diverged: `train.max_bad_steps` steps in a row had no finite loss.
        """
        self._pending.append((step, metrics))
        if step == self.start + 1:
            jax.block_until_ready(metrics)
            seconds = time.perf_counter() - self.began
            _LOGGER.info("first step done %.1f s after the loop began", seconds)
            self.write(step, {"seconds_to_first_step": round(seconds, 2)})
            self._interval_start, self._paused = time.perf_counter(), 0.0
            # A new run with `train.minutes` was told when its steps were settled.
            if self.train.minutes is None or step > 1:
                self._told_from = self._interval_start + _SETTLING_SECONDS
        self._bar.update()
        if step % self.train.log_every == 0 or step == self.train.steps:
            self._flush(step)

    def _flush(self, step: int) -> None:
        values, is_settled = self._read(), self._interval_start >= self._told_from
        seconds = time.perf_counter() - self._interval_start - self._paused
        self._interval_start, self._paused = time.perf_counter(), 0.0
        positions = range(self._pending[0][0] - 1, step)
        untimed = 1 if positions.start == self.start else 0  # the first step compiles
        timed, shapes = values[untimed:], self._shapes[untimed:]
        self._shapes.clear()
        self._pending.clear()
        used = [value for value in values if value["finite"]]
        record: dict[str, Any] = {}
        if used:
            tokens = max(_sum(used, "tokens"), 1.0)
            record["loss"] = _sum(used, "loss_sum") / tokens
            record["nll"] = _sum(used, "nll_sum") / tokens
            record["grad_norm"] = float(used[-1]["grad_norm"])
        skipped = int(values[-1]["skipped"])
        record["learning_rate"] = float(self.schedule(max(step - 1 - skipped, 0)))
        if timed:
            speed = record["target_tokens_per_second"] = _sum(timed, "tokens") / seconds
            record["steps_per_second"] = len(timed) / seconds
            if self.share_of_peak:
                with self.pause():  # each shape is counted once, which takes a second
                    record["share_of_peak"] = self.share_of_peak(shapes, seconds)
        record["skipped_steps"] = skipped
        record |= self.batch_metrics(positions)
        self.write(step, record)
        if len(used) < len(values):
            _LOGGER.warning(
                f"step {step}: {len(values) - len(used)} of the last {len(values)} steps skipped, "
                f"their loss was not finite ({skipped} skipped so far)"
            )
        elif timed:
            steps = self.train.steps - step
            left = steps * seconds / len(timed)
            progress = f"{in_words(left)} left, loss {record['loss']:.3f}, {speed:,.0f} tokens/s"
            self._bar.set_postfix_str(progress, refresh=sys.stderr.isatty())
            if is_settled:
                self._told_from = math.inf
                _tell(steps, left)

    def _read(self) -> list[dict[str, Any]]:
        """The pending values on the host; raises if too many bad steps are in a row."""
        values = jax.device_get([metrics for _, metrics in self._pending])
        most = self.train.max_bad_steps
        for (step, _), value in zip(self._pending, values, strict=True):
            if value["skipped_in_a_row"] >= most:
                first = step - int(value["skipped_in_a_row"]) + 1
                raise Diverged(
                    f"the loss or its gradient was not finite in steps {first} to {step} (data "
                    f"positions {first - 1} to {step - 1}), that is train.max_bad_steps={most} in "
                    "a row: stopped. None of them changed the parameters, and none is saved. Try "
                    "a lower train.schedule.learning_rate, train.clip_norm or dtype=float32, in "
                    "another folder: a run keeps its config"
                )
        return values

    def write(self, step: int, values: dict[str, Any]) -> None:
        """A record to metrics.jsonl, TensorBoard and the trackers."""
        if self._log:
            minutes = (time.perf_counter() - self._zero) / 60
            self._log.write(step, {**values, "minutes": round(minutes, 3)})
        if "validation.bleu" in values:
            _LOGGER.info("step %d: validation BLEU %.2f", step, values["validation.bleu"])

    def sync(self) -> None:
        """Returns when all records are in the run folder, also if that is in a bucket."""
        if self._log:
            self._log.sync()

    @contextlib.contextmanager
    def compiling(self, batch: Mapping[str, np.ndarray]) -> Iterator[None]:
        """As `pause` around the first step of each shape of batch, which compiles."""
        shape = (*batch["source"].shape, batch["target"].shape[1])
        with contextlib.nullcontext() if shape in self._known_shapes else self.pause():
            yield
        self._known_shapes.add(shape)
        self._shapes.append(shape)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leaves what happens inside out of the speed and of the time left.

        For evaluation, saving and compilation. Checks for bad steps first.

        Raises:
            Diverged: as `log`.
        """
        if self._pending:
            self._read()
        before = time.perf_counter()
        yield
        self._paused += time.perf_counter() - before

    def close(self) -> None:
        """Ends the bar and closes the files."""
        self._bar.close()
        if self._log:
            self._log.close()


def _tell(steps: int, seconds: float) -> None:
    """Says how long a training takes, once it is known; not where nobody waits for it."""
    shorter = "; a new run with --config.train.minutes=60 takes an hour"
    if seconds >= 60:
        _LOGGER.info(
            f"{steps:,} steps to go will take about {in_words(seconds)} on this machine, "
            f"evaluations not counted{shorter if seconds > 90 * 60 else ''}"
        )


def _sum(values: list[dict[str, Any]], key: str) -> float:
    return sum(float(value[key]) for value in values)


def in_words(seconds: float) -> str:
    """A duration as people say it: `45 s`, `12 min`, `3 h 10 min`."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
