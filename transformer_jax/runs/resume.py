"""What a config leaves open, and whether it may continue the run that is in a folder."""

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_jax.config import Config, differences, load_config, validated
from transformer_jax.data.text import resolve
from transformer_jax.data.tokenizer import settled_vocab_size
from transformer_jax.errors import UserError
from transformer_jax.optimizers.schedules import SCHEDULES
from transformer_jax.parallel.fast_dtype import fast_matmul_dtype
from transformer_jax.paths import as_path, in_bucket
from transformer_jax.runs.checkpoints import has_trained
from transformer_jax.variants import kind_of

#: Values that mean "as the run finds it": once found, they are the run's.
_OPEN: dict[str, tuple[Any, ...]] = {
    "model.source_vocab_size": (None,),
    "model.target_vocab_size": (None,),
    "model.matmul_dtype": ("auto",),
    "batch.row_multiple": (None,),
    "tokenizer.vocab_size": (None,),
}

#: Keys, and groups of keys, that don't decide the parameters at a step. The text itself
#: does, but it is known by its content, wherever it lies.
_FREE = (
    "data.source",
    "data.source.",
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


def settle(config: Config, workdir: str | Path, say: Callable[[str], None]) -> Config:
    """`config` with nothing left open, to start a run in `workdir` or continue the one there.

    File names become absolute, so that the run folder can be used from anywhere. The config of
    a start that failed before anything was saved holds nobody to it.

    Args:
        config: as the recipe and the command line give it.
        workdir: the run folder, which need not exist; nothing in it is touched.
        say: told what differs from the run's own config, where that is allowed.

    Raises:
        UserError: the folder holds checkpoints without a config, or a run with another
            config; or a language is not named.
    """
    folder = as_path(workdir)
    is_new = not (folder / "config.json").exists()
    if is_new and (folder / "checkpoints").exists():
        raise UserError(
            f"--workdir={workdir}: holds checkpoints but no config.json; use another folder"
        )
    config = validated(config)
    tokenizer = _absolute(config.tokenizer)
    given = dataclasses.replace(config, data=resolve(config.data), tokenizer=tokenizer)

    def fresh() -> Config:
        vocab_size = functools.partial(settled_vocab_size, given.tokenizer)
        return _fill(
            given, {"model.matmul_dtype": fast_matmul_dtype, "tokenizer.vocab_size": vocab_size}
        )

    if is_new:
        return fresh()
    old = load_config(workdir)
    config = _fill(given, {key: _getter(old, key) for key in _OPEN})
    changed = differences(old, config)
    refused = _refused(changed, config)
    # In a bucket no lock would tell a start that failed from a run that goes on.
    if refused and not in_bucket(folder) and not has_trained(folder):
        say(f"nothing was trained in {workdir} yet: starting anew")
        return fresh()
    if refused:
        hint = ""
        if any(change.startswith("train.steps:") for change in refused):
            kind = kind_of(config.train.schedule, SCHEDULES)
            hint = f" (the learning rate of train.schedule={kind} depends on train.steps)"
        raise UserError(
            f"--workdir={workdir} holds a run with another config ({'; '.join(refused)}){hint}: "
            "use another folder, or the same config to continue; nothing was touched"
        )
    if changed:
        say(f"continuing with {'; '.join(changed)}")
    return config


def starts_anew(config: Config, workdir: str | Path) -> bool:
    """Whether a settled config begins a run: the folder has none, or one of a start that failed."""
    if not (as_path(workdir) / "config.json").exists():
        return True
    return bool(_refused(differences(load_config(workdir), config), config))


def _refused(changed: list[str], config: Config) -> list[str]:
    return [change for change in changed if not _may_change(change.split(":")[0], config)]


def _may_change(key: str, config: Config) -> bool:
    if key == "train.steps":  # a longer run of these is the shorter one, gone on with
        return not config.train.schedule.fixes_steps
    return any(key == free or (free.endswith(".") and key.startswith(free)) for free in _FREE)


def _fill(config: Config, found: dict[str, Callable[[], Any]]) -> Config:
    for key, find in found.items():
        part, name = key.split(".")
        group = getattr(config, part)
        if getattr(group, name) in _OPEN[key]:
            config = dataclasses.replace(
                config, **{part: dataclasses.replace(group, **{name: find()})}
            )
    return config


def _getter(config: Config, key: str) -> Callable[[], Any]:
    part, name = key.split(".")
    return lambda: getattr(getattr(config, part), name)


def _absolute(group: Any) -> Any:
    """A group of keys with the file names in it made absolute; URLs stay as they are."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        if field.name.endswith("_model") and value:
            found[field.name] = _absolute_path(value)
    return dataclasses.replace(group, **found)


def _absolute_path(path: str) -> str:
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))
