"""One training of a comparison: trained, scored, measured, and read again."""

import dataclasses
import logging
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import jax
import numpy as np
from etils import epath

from transformer_jax.commands.compare.rows import SEEDS
from transformer_jax.config import Config, from_dict, override, to_dict
from transformer_jax.data.batches import Share
from transformer_jax.errors import Diverged
from transformer_jax.models.flops import train_step_flops
from transformer_jax.paths import read_record, write_record
from transformer_jax.runs.evaluation import evaluate
from transformer_jax.runs.folder import Run
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.start import Start
from transformer_jax.training.data import read_training_data
from transformer_jax.training.train import train

_LOGGER = logging.getLogger(__name__)

_FILE = "comparison.json"


@dataclass(frozen=True)
class Result:
    """One trained and scored model. What was not measured is None."""

    seed: int
    scores: dict[str, float]  #: metric -> score of the test set, such as `bleu`
    steps: int  #: that were trained; fewer than the recipe's if it stopped early
    signature: str = ""  #: of BLEU; of a training that diverged there is none, and its scores are 0
    validation: float | None = None  #: BLEU of the validation set, for the choice in a grid
    steps_per_second: float | None = None  #: the median over the training
    cpu_seconds_per_step: float | None = None  #: of all cores, the median over the training
    peak_gb: float | None = None  #: while training: of a device's memory, or a CPU's process
    gflops_per_step: float | None = None  #: what the model needs, the mean over the batches
    sentences_per_second: float | None = None  #: of the search for the score, without compilation


def with_seed(config: Config, number: int) -> Config:
    """The config with the next seeds: of weights and dropout, and of the order of the text."""
    return override(config, {key: attrgetter(key)(config) + number for key in SEEDS})


def run_training(
    config: Config,
    folder: epath.Path,
    *,
    validate: bool = False,
    should_stop: Callable[[], bool],
    progress: bool,
) -> Result | None:
    """Trains and scores a model, and writes the result; or reads it if that was done before.

    Args:
        config: with the seeds of this training.
        folder: of this training; one that was stopped continues there.
        validate: score the validation set too.
        should_stop: as for `train`.

    Returns:
        The result; None if the training was stopped.

    Raises:
        UserError: the folder is of another recipe; or as `train` and `evaluate`.
    """
    if (stored := stored_result(config, folder)) is not None:
        return stored
    meter = Meter(should_stop, config.train.log_every)
    try:
        run = train(config, folder, should_stop=meter, progress=progress)
        if should_stop():
            return None
        result = _scored(run, meter, validate)
    except Diverged as error:
        _LOGGER.warning(f"{folder} scores 0: {error}")
        steps = max((record["step"] for record in read_metrics(folder)), default=0)
        scores, validation = {"bleu": 0.0, "chrf": 0.0}, 0.0 if validate else None
        result = Result(config.train.seed, scores, steps, validation=validation)
    write_record(folder / _FILE, {"config": to_dict(config)}, **dataclasses.asdict(result))
    return result


def _scored(run: Run, meter: "Meter", validate: bool) -> Result:
    peak = peak_gb() if meter.calls else None  # else it was trained before
    validation, test = evaluate(run, "validation") if validate else None, evaluate(run)
    assert test is not None, "a comparison runs in one process"
    speeds = [each["steps_per_second"] for each in run.metrics() if "steps_per_second" in each]
    return Result(
        seed=run.config.train.seed,
        scores={name: score.score for name, score in test.scores.items()},
        steps=run.checkpoints()[-1],
        signature=test.scores["bleu"].signature,
        validation=None if validation is None else validation.scores["bleu"].score,
        steps_per_second=statistics.median(speeds) if speeds else None,
        cpu_seconds_per_step=meter.seconds_per_step,
        peak_gb=peak,
        gflops_per_step=gflops_per_step(run),
        sentences_per_second=test.sentences_per_second,
    )


def stored_result(config: Config, folder: epath.Path) -> Result | None:
    """The result of a training that is done; None if it is not.

    Raises:
        UserError: it is damaged, or of another recipe.
    """
    path = folder / _FILE
    stored = read_record(path, {"config": to_dict(config)}, "--output")
    return None if stored is None else from_dict(Result, stored, f"{path}: ")


class Meter:
    """Reads this process's CPU clock every some steps: `should_stop` is asked after each step."""

    def __init__(self, should_stop: Callable[[], bool], every: int) -> None:
        self.calls, self._should_stop, self._every = 0, should_stop, every
        self._times: list[float] = []

    def __call__(self) -> bool:
        self.calls += 1
        if self.calls % self._every == 0:  # when the loop waits for the device
            self._times.append(time.process_time())
        return self._should_stop()

    @property
    def seconds_per_step(self) -> float | None:
        """The median, so that compiling and evaluating do not count."""
        spent = [after - before for before, after in pairwise(self._times)]
        return statistics.median(spent) / self._every if spent else None


def peak_gb() -> float:
    """The most memory so far: of a device, or where it does not tell, of this process."""
    stats = jax.local_devices()[0].memory_stats() or {}
    of_process = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(stats.get("peak_bytes_in_use", of_process) / 1e9)


def gflops_per_step(run: Run) -> float:
    """What the model needs for a step, the mean over the batches of an epoch."""
    start = Start(run.config, is_new=False, has_folder=True)
    plan = read_training_data(start, run.path, Share(), progress=False).stream.plan
    positions, counts = zip(*plan.examples(), strict=True)
    flops = [train_step_flops(run.model, *plan.rows(position)[0]) for position in positions]
    return float(np.average(flops, weights=counts) / 1e9)
