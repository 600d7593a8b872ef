"""What a config may leave open, and how the first start of a run settles it.

`fill_in` settles what the text, the tokenizer and the devices determine. `resolve_steps` and
`resolve_dropout` settle what takes the speed of the machine and the number of epochs. A run keeps
the values in its `config.json`: it is a function of its config, wherever it is continued.
"""

import dataclasses
import logging
import math
from operator import attrgetter
from typing import Any, NamedTuple

import jax

from transformer_jax.config import Config, TrainConfig, override
from transformer_jax.data.language_tags import tags_of
from transformer_jax.data.splits import count_pairs, holds_out
from transformer_jax.data.tokenizer_training import (
    missing_tags,
    resolved_vocab_size,
    vocabulary_sizes,
)
from transformer_jax.errors import UserError
from transformer_jax.parallel.mesh import batch_devices, make_mesh
from transformer_jax.recipes import ByPairs
from transformer_jax.runs.fast_dtype import fast_matmul_dtype
from transformer_jax.runs.log import in_words

_LOGGER = logging.getLogger(__name__)

#: Keys that the first start of a run settles where they are open, and that keep their value.
KEYS = (
    "model.source_vocab_size",
    "model.target_vocab_size",
    "model.matmul_dtype",
    "model.dropout_rate",
    "batch.row_multiple",
    "tokenizer.vocab_size",
)
#: With `train.minutes`: keys that are upper limits, and one that is settled if it is open.
AT_MOST = ("train.steps", "train.schedule.warmup_steps")
PEAK = "train.schedule.learning_rate"
#: (epochs, the dropout rate of trainings with fewer), measured on texts of 10,000 to 150,000 pairs
#: (docs/results.md). Longer trainings have the last rate: a text that is seen a few times only is
#: not learned by heart, and dropout slows its training down.
_BELOW = ((15.0, 0.1), (28.0, 0.2))
_LONGEST = 0.3
#: Share of the time left that is kept. The steps are measured alone. In a training the same cores
#: make batches, write metrics and save checkpoints: on two of them a step took 14 % longer.
_RESERVE = 0.15
#: Fewer steps teach a model nothing.
_LEAST_STEPS = 30


def is_open(config: Config, key: str) -> bool:
    """Whether the config leaves a key of `KEYS` to the first start."""
    return attrgetter(key)(config) in (None, "auto")


def fill_in(config: Config, devices: list[jax.Device]) -> Config:
    """The config with nothing left open.

    `model.dropout_rate=auto` becomes the rate of few epochs; see `resolve_dropout`.

    Args:
        config: with the names of its languages.
        devices: that the run is for.

    Raises:
        UserError: the vocabulary or the mesh cannot be as the config says.
    """
    tags = tags_of(config.data)
    if config.train.init_from and (missing := missing_tags(config.tokenizer, tags)):
        raise UserError(
            f"train.init_from={config.train.init_from}: the vocabulary of that run lacks what the "
            f"corpora need: {', '.join(missing)}"
        )
    sizes = dict(zip(("source", "target"), vocabulary_sizes(config.tokenizer, tags), strict=True))
    for side, size in sizes.items():
        given = getattr(config.model, f"{side}_vocab_size")
        if given not in (None, size):
            raise UserError(
                f"model.{side}_vocab_size={given}, but the tokenizer has {size} pieces; leave it "
                "out"
            )
    values: dict[str, Any] = {
        "model.source_vocab_size": sizes["source"],
        "model.target_vocab_size": sizes["target"],
        "model.matmul_dtype": fast_matmul_dtype(devices[0]),
        "model.dropout_rate": _BELOW[0][1],
        "batch.row_multiple": batch_devices(make_mesh(config.mesh, devices))
        * config.train.accumulate,
        "tokenizer.vocab_size": resolved_vocab_size(config.tokenizer),
    }
    if config.train.minutes is not None:  # which may lower warmup_steps: the peak stays
        schedule = config.train.schedule
        rate = schedule.build(config.model.d_model, config.train.steps)
        values[PEAK] = float(rate(max(1, schedule.warmup_steps) - 1))
    return override(config, {key: value for key, value in values.items() if is_open(config, key)})


def apply_by_pairs(config: Config, by_pairs: ByPairs | None, devices: list[jax.Device]) -> Config:
    """The config with the settings for the size of its text, which is read to count its pairs.

    Args:
        config: of a recipe.
        by_pairs: of the recipe.
        devices: that the run is for.

    Raises:
        UserError: the text is damaged, or a value is wrong.
    """
    if by_pairs is None or not by_pairs.keys:
        return config
    most = max(by_pairs.below)
    count = count_pairs(config.data, most)
    values = by_pairs.values(count, on_cpu=devices[0].platform == "cpu")
    if values:
        config = override(config, values)
    lines: dict[str, list[str]] = {}
    for key in by_pairs.keys:
        if key != "data.validation_from_train" or holds_out(config.data):
            part, _, name = key.partition(".")
            lines.setdefault(part, []).append(f"{name}={attrgetter(key)(config)}")
    _LOGGER.info(
        "settings for %s%s training pairs, kept in config.json; flags such as --config.%s=%s "
        "change them:\n%s",
        f"{count:,}",
        " or more" if count == most else "",
        by_pairs.keys[0],
        attrgetter(by_pairs.keys[0])(config),
        "\n".join(f"  {f'{part}:':<11}{'  '.join(entries)}" for part, entries in lines.items()),
    )
    return config


class Speed(NamedTuple):
    """Seconds on this machine, without compilation."""

    step: float  #: mean over the batches of an epoch
    evaluation: float  #: of the validation set; 0 without one


def resolve_steps(config: Config, speed: Speed, elapsed: float) -> Config:
    """The run that fits into `train.minutes`: fewer steps, with a warm-up of a tenth at most.

    Where all steps fit, it is the given one.

    Args:
        config: has the most steps and the longest warm-up.
        speed: as measured.
        elapsed: seconds since the start of the run: reading, tokenizer, compilation.

    Raises:
        UserError: not even some tens of steps fit.
    """
    train = config.train
    minutes = train.minutes or math.inf
    # One evaluation is at the end, the others are every `evaluate_every` steps.
    step = speed.step + speed.evaluation / train.evaluate_every
    free = (60 * minutes - elapsed) * (1 - _RESERVE) - speed.evaluation
    fitting = max(0, int(free / step))
    if fitting < min(_LEAST_STEPS, train.steps):
        least = elapsed + (_LEAST_STEPS * step + speed.evaluation) / (1 - _RESERVE)
        raise UserError(
            f"train.minutes={minutes:g}: {fitting} steps fit, after {elapsed / 60:.1f} min until "
            f"the first one, with {speed.step:.2g} s a step and {speed.evaluation:.2g} s an "
            f"evaluation: give at least {math.ceil(least / 60)} minutes, or set a smaller model"
        )
    if fitting >= train.steps:
        return config
    warmup = min(train.schedule.warmup_steps, max(1, fitting // 10))
    return override(config, {"train.steps": fitting, "train.schedule.warmup_steps": warmup})


def describe_steps(given: TrainConfig, fitting: TrainConfig, speed: Speed) -> str:
    """What `resolve_steps` settled, for the user."""
    minutes = fitting.minutes or 0.0
    if fitting.steps == given.steps:
        takes = in_words(fitting.steps * speed.step)
        return (
            f"{minutes:g} minutes on this machine are enough for all {given.steps:,} steps of "
            f"{speed.step:.2g} s: about {takes}"
        )
    return (
        f"{minutes:g} minutes on this machine: {fitting.steps:,} steps of {speed.step:.2g} s, of "
        f"which {fitting.schedule.warmup_steps:,} warm up (without train.minutes: {given.steps:,} "
        f"steps, about {in_words(given.steps * speed.step)})"
    )


def resolve_dropout(config: Config, epochs: float) -> Config:
    """The config with the dropout rate for the number of epochs, in place of `auto`.

    Args:
        config: has any rate.
        epochs: how often the training sees its text.
    """
    rates = (rate for most, rate in _BELOW if epochs < most)
    rate = next(rates, _LONGEST)
    _LOGGER.info("model.dropout_rate=%s for %.1f epochs", rate, epochs)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, dropout_rate=rate))
