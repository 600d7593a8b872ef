"""How a run starts: new, or continued, or refused."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Self, TypeVar

import jax
from etils import epath

from transformer_jax.config import Config, differences, from_json, override, to_json, validated
from transformer_jax.data import splits
from transformer_jax.data.sources.base import absolute_name
from transformer_jax.errors import UserError
from transformer_jax.optimizers.schedules import SCHEDULES
from transformer_jax.paths import in_bucket
from transformer_jax.recipes import ByPairs
from transformer_jax.runs.checkpoints import checkpoint_steps, has_trained, read_meta
from transformer_jax.runs.folder import check_whole, open_run
from transformer_jax.runs.open_values import AT_MOST, KEYS, PEAK, apply_by_pairs, fill_in, is_open
from transformer_jax.variants import kind_of

P = TypeVar("P")
_LOGGER = logging.getLogger(__name__)

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
    """With which config a run starts, and whether from the beginning.

    Nothing in the config is open. But what the two last fields name is an upper limit, or a first
    value, until the text was read and the speed was measured.
    """

    config: Config
    is_new: bool
    has_folder: bool  #: whether there was a config.json
    measures_steps: bool = False  #: whether `train.minutes` is to settle how many steps there are
    by_epochs: bool = False  #: whether the epochs are to settle `model.dropout_rate=auto`

    def encode(self) -> dict[str, Any]:
        """As JSON, for other processes."""
        return vars(self) | {"config": to_json(self.config)}

    @classmethod
    def decode(cls, values: dict[str, Any]) -> Self:
        """What `encode` made."""
        return cls(**values | {"config": from_json(values["config"], "config")})


def begin_new(
    config: Config,
    by_pairs: ByPairs | None = None,
    devices: list[jax.Device] | None = None,
    *,
    has_folder: bool = False,
) -> Start:
    """The start of a new run, for a training and for a plan.

    Args:
        config: as the recipe and the command line give it.
        by_pairs: what is filled in by the size of the text.
        devices: that the run is for; default: all.
        has_folder: whether the folder holds a `config.json`.

    Raises:
        UserError: what the config says cannot be; or the text, which is read to count its pairs,
            is damaged.
    """
    devices = devices or jax.devices()
    config = apply_by_pairs(config, by_pairs, devices)
    by_epochs = is_open(config, "model.dropout_rate")
    config = fill_in(config, devices)
    return Start(config, True, has_folder, config.train.minutes is not None, by_epochs)


def resolve_start(config: Config, workdir: epath.Path, by_pairs: ByPairs | None = None) -> Start:
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
        data=splits.resolve(config.data),
        tokenizer=_absolute(config.tokenizer, "source_model", "target_model"),
        train=_absolute(config.train, "init_from"),
    )
    if not has_config:
        return begin_new(given, by_pairs)
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
        return begin_new(given, by_pairs, has_folder=True)
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


def _taken_from(old: Config, config: Config, by_pairs: Iterable[str]) -> Config:
    """`config` with the values of the run's own config for what it leaves open.

    Args:
        old: the run's own config.
        config: the given one.
        by_pairs: keys that the first start filled in by the size of the text.
    """
    open_keys = [key for key in KEYS if is_open(config, key)]
    values = {}
    for key in (*open_keys, *by_pairs):
        with contextlib.suppress(AttributeError):  # an option of a variant that is not that run's
            values[key] = attrgetter(key)(old)
    config = override(config, values)
    values = {}
    if config.train.minutes is not None and config.train.minutes == old.train.minutes:
        for key in AT_MOST:  # lowered by it
            values[key] = min(attrgetter(key)(config), attrgetter(key)(old))
        if is_open(config, PEAK):
            values[PEAK] = attrgetter(PEAK)(old)
    return override(config, values)
