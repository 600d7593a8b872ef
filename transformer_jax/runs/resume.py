"""What a config leaves open, and whether it may continue the run in a folder."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

import jax
from etils import epath

from transformer_jax.config import Config, differences, override, validated
from transformer_jax.data.language_tags import tags_of
from transformer_jax.data.sources.base import absolute_name
from transformer_jax.data.splits import count_pairs
from transformer_jax.data.splits import resolve as resolve_data
from transformer_jax.data.tokenizer_training import (
    missing_tags,
    resolved_vocab_size,
    vocabulary_sizes,
)
from transformer_jax.errors import UserError
from transformer_jax.optimizers.schedules import SCHEDULES
from transformer_jax.parallel.mesh import batch_devices, make_mesh
from transformer_jax.paths import in_bucket
from transformer_jax.recipes import ByPairs
from transformer_jax.runs.checkpoints import checkpoint_steps, has_trained, read_meta
from transformer_jax.runs.fast_dtype import fast_matmul_dtype
from transformer_jax.runs.folder import check_whole, open_run
from transformer_jax.variants import kind_of

P = TypeVar("P")
_LOGGER = logging.getLogger(__name__)

#: Fields that the first start of a run fills in, and that keep their value afterwards.
_FILLED_IN = (
    "model.source_vocab_size",
    "model.target_vocab_size",
    "model.matmul_dtype",
    "model.dropout_rate",
    "batch.row_multiple",
    "tokenizer.vocab_size",
)
#: Fields that are upper limits with `train.minutes`, which the first start settles.
_AT_MOST = ("train.steps", "train.schedule.warmup_steps")
_PEAK = "train.schedule.learning_rate"
#: Fields, and groups of fields, that do not affect the parameters at a step. The text does, but it
#: is compared by its content, whatever the names of the files.
_MAY_CHANGE = (
    "data.source",
    "data.source.",
    "data.corpora",
    "data.cache_dir",
    "decode.",
    "mesh.",
    "model.remat",
    "train.log_every",
    "train.evaluate_every",
    "train.evaluate_sentences",
    "train.early_stopping",
    "train.checkpoint_every",
    "train.keep_checkpoints",
)


@dataclasses.dataclass(frozen=True)
class Start:
    """With which config a run starts, and whether from the beginning."""

    config: Config
    is_new: bool
    has_folder: bool  #: whether there was a config.json

    @property
    def measures_steps(self) -> bool:
        """Whether `train.minutes` is still to settle how many steps there are."""
        return self.is_new and self.config.train.minutes is not None


def resolve(config: Config, workdir: epath.Path, by_pairs: ByPairs | None = None) -> Start:
    """Decides whether `config` begins a run in `workdir` or continues the one there.

    File names become absolute, so that the run folder can be used from any directory. The order
    of the rules is important:

    1. No `config.json`: a new run.
    2. The run's config, or one that differs only in what may change: the run continues.
    3. Another config, but no checkpoint was ever saved: a new run in the same folder.
    4. Another config and a checkpoint: refused.

    Args:
        config: as the recipe and the command line give it.
        workdir: the run folder, which need not exist; nothing in it is touched.
        by_pairs: what a new run fills in by the size of its text, and keeps.

    Raises:
        UserError: rule 4, or the folder holds checkpoints without a config, or a language is not
            named.
    """
    check_whole(workdir)
    has_config = (workdir / "config.json").exists()
    config = validated(config)
    given = dataclasses.replace(
        config,
        data=resolve_data(config.data),
        tokenizer=_absolute(config.tokenizer, "source_model", "target_model"),
        train=_absolute(config.train, "init_from"),
    )
    if not has_config:
        return Start(_filled_in(adapted(given, by_pairs)), is_new=True, has_folder=False)
    old = open_run(workdir).config
    config = _taken_from(old, given, by_pairs.keys if by_pairs else ())
    changed = differences(old, config)
    refused = [change for change in changed if not _may_change(change.split(":")[0], config)]
    if not refused:
        if changed:
            _LOGGER.info("continuing with %s", "; ".join(changed))
        return Start(config, is_new=False, has_folder=True)
    # In a bucket no lock tells a start that failed from a run in progress.
    if not in_bucket(workdir) and not has_trained(workdir):
        _LOGGER.info("nothing was trained in %s yet: starting anew", workdir)
        return Start(_filled_in(adapted(given, by_pairs)), is_new=True, has_folder=True)
    hint = ""
    if any(change.startswith("train.steps:") for change in refused):
        kind = kind_of(config.train.schedule, SCHEDULES)
        hint = f" (the learning rate of train.schedule={kind} depends on train.steps)"
    raise UserError(
        f"{workdir} holds a run with another config ({'; '.join(refused)}){hint}: "
        "use another folder, or the same config to continue; nothing was touched"
    )


def check_identity(now: Mapping[str, str], workdir: epath.Path) -> None:
    """Refuses to continue a run on other data; touches nothing.

    Args:
        now: hashes of what determines the run besides its config, such as the training text. They
            are compared with those in the newest checkpoint whose meta can be read.
        workdir: the run folder.

    Raises:
        UserError: a hash differs.
    """
    for step in reversed(checkpoint_steps(workdir)):
        try:
            saved = dict(read_meta(workdir, step)["identity"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # restoring it reports the damage
        for key, value in now.items():
            if saved.get(key, value) != value:
                raise UserError(
                    f"{workdir}: the {key} changed since this run was saved, so it cannot be "
                    "continued exactly: restore what it was, or use another folder"
                )
        return


def _absolute(part: P, *keys: str) -> P:
    """The part of a config with absolute names in these keys."""
    names = {key: getattr(part, key) for key in keys}
    made = {key: absolute_name(name) for key, name in names.items() if name}
    return dataclasses.replace(part, **made)  # type: ignore[type-var]


def _may_change(key: str, config: Config) -> bool:
    if key == "train.steps":  # with these schedules a longer run begins as the shorter one
        return not config.train.schedule.fixes_steps
    return any(key == free or (free.endswith(".") and key.startswith(free)) for free in _MAY_CHANGE)


def _filled_in(config: Config) -> Config:
    """A new run's config, with nothing left open.

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
    multiple = batch_devices(make_mesh(config.mesh)) * config.train.accumulate
    values: dict[str, Any] = {
        "model.source_vocab_size": sizes["source"],
        "model.target_vocab_size": sizes["target"],
        "model.matmul_dtype": fast_matmul_dtype(),
        "batch.row_multiple": multiple,
        "tokenizer.vocab_size": resolved_vocab_size(config.tokenizer),
    }
    if config.train.minutes is not None:  # which may lower warmup_steps: the peak stays
        schedule = config.train.schedule
        rate = schedule.build(config.model.d_model, config.train.steps)
        values[_PEAK] = float(rate(max(1, schedule.warmup_steps) - 1))
    return override(config, {key: value for key, value in values.items() if _is_open(config, key)})


def adapted(config: Config, by_pairs: ByPairs | None) -> Config:
    """The config with the settings for the size of its text, which is read to count its pairs.

    Raises:
        UserError: the text is damaged, or a value is wrong.
    """
    if by_pairs is None or not by_pairs.keys:
        return config
    most = max(by_pairs.below)
    count = count_pairs(config.data, most)
    values = by_pairs.values(count, on_cpu=jax.devices()[0].platform == "cpu")
    if values:
        config = override(config, values)
    lines: dict[str, list[str]] = {}
    for key in by_pairs.keys:
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


def _taken_from(old: Config, config: Config, by_pairs: Iterable[str]) -> Config:
    """`config` with the values of the run's own config for what it leaves open.

    Args:
        old: the run's own config.
        config: the given one.
        by_pairs: keys that the first start filled in by the size of the text.
    """
    open_keys = [key for key in _FILLED_IN if _is_open(config, key)]
    values = {}
    for key in (*open_keys, *by_pairs):
        with contextlib.suppress(AttributeError):  # an option of a variant that is not that run's
            values[key] = attrgetter(key)(old)
    config = override(config, values)
    values = {}
    if config.train.minutes is not None and config.train.minutes == old.train.minutes:
        for key in _AT_MOST:  # lowered by `train.minutes`
            values[key] = min(attrgetter(key)(config), attrgetter(key)(old))
        if _is_open(config, _PEAK):
            values[_PEAK] = attrgetter(_PEAK)(old)
    return override(config, values)


def _is_open(config: Config, key: str) -> bool:
    return attrgetter(key)(config) in (None, "auto")
