"""How a run starts: new, or continued, or refused; and what its config leaves open.

`begin_new` settles what the text, the tokenizer and the devices determine; `training/speed.py` what
takes the speed of the machine. A run keeps the values in its
`config.json`: it is a function of its config, wherever it is continued.
"""

import contextlib
import dataclasses
import logging
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

import jax
from etils import epath

from transformer_jax.config import (
    Config,
    differences,
    marked,
    override,
    to_dict,
)
from transformer_jax.data.config import TOKENS_PER_DEVICE
from transformer_jax.data.language_tags import tags_of
from transformer_jax.data.sources.base import Languages
from transformer_jax.data.sources.files import file_digest
from transformer_jax.data.splits import (
    check_splits,
    count_pairs,
    directions_with,
    lacks_own_validation,
    resolve as resolve_data,
)
from transformer_jax.data.tokenizer_training import vocabularies
from transformer_jax.errors import UserError
from transformer_jax.models.api import check_guided
from transformer_jax.parallel.mesh import batch_devices, make_mesh
from transformer_jax.paths import in_bucket
from transformer_jax.recipes import ByPairs
from transformer_jax.runs.checkpoints import has_trained
from transformer_jax.runs.fast_dtype import fast_matmul_dtype
from transformer_jax.runs.folder import check_has_config, open_run
from transformer_jax.runs.prepared import with_prepared
from transformer_jax.settings.file_names import absolute_names
from transformer_jax.settings.types import MAY_CHANGE, SETTLED

_LOGGER = logging.getLogger(__name__)

#: Keys that the first start of a run settles where they are open, and that keep their value.
_KEYS = marked(SETTLED)
#: With `train.minutes`: keys that are upper limits, and one that is settled if it is open.
_AT_MOST = ("train.steps", "train.schedule.warmup_steps")
_PEAK = "train.schedule.learning_rate"

#: Keys, and groups of keys, that do not affect the parameters at a step.
_MAY_CHANGE = ("decode.", "mesh.", *(f"{key}." for key in marked(MAY_CHANGE)))


@dataclasses.dataclass(frozen=True)
class Start:
    """With which config a run starts, and whether from the beginning.

    Nothing in the config is open. But until the speed was measured, `train.steps` of a new run is
    an upper limit with `train.minutes`.
    """

    config: Config
    is_new: bool
    has_folder: bool  #: whether there was a config.json


def begin_new(
    config: Config, by_pairs: ByPairs | None = None, devices: list[jax.Device] | None = None
) -> Config:
    """The config with which a new run starts, for a training and for a plan.

    Args:
        config: validated, with the text that was prepared for it.
        by_pairs: what is filled in by the size of the text.
        devices: that the run is for; default: all.

    Raises:
        UserError: what the config says cannot be; or the text, which is read to count its pairs,
            is damaged.
    """
    devices = devices or jax.devices()
    config = _by_size(config, by_pairs, devices)
    for blocks in config.data.blocks:
        blocks.check(min(config.batch.max_length, config.model.max_length))
    tokens = vocabularies(config.tokenizer, tags_of(config.data))
    if config.train.init_from and tokens.added:
        raise UserError(
            f"train.init_from={config.train.init_from}: the vocabulary of that run lacks what "
            f"data.corpora or data.blocks need: {', '.join(tokens.added)}; begin with a run that "
            "has it, or leave them out"
        )
    for side in ("source", "target"):
        given, size = getattr(config.model, f"{side}_vocab_size"), getattr(tokens, side)
        if given not in (None, size):
            raise UserError(
                f"model.{side}_vocab_size={given}, but the tokenizer has {size} pieces; leave it "
                "out"
            )
    data_devices = batch_devices(make_mesh(config.mesh, devices))
    fast = fast_matmul_dtype(devices[0])
    counts = [blocks.sentences for blocks in config.data.blocks]
    longest = [blocks.tokens or config.batch.max_length for blocks in config.data.blocks]
    values: dict[str, Any] = {
        "model.source_vocab_size": tokens.source,
        "model.target_vocab_size": tokens.target,
        "model.dtype": "float32" if devices[0].platform == "cpu" else fast,
        "model.matmul_dtype": fast,
        "batch.tokens": TOKENS_PER_DEVICE * data_devices,
        "batch.row_multiple": data_devices * config.train.accumulate,
        "decode.block_tokens": max(longest, default=None),
        "decode.block_sentences": None if () in counts else max(chain(*counts), default=None),
        "tokenizer.vocab_size": tokens.trained,
    }
    if config.train.minutes is not None:  # which may lower warmup_steps: the peak stays
        schedule = config.train.schedule
        rate = schedule.build(config.model.d_model, config.train.steps)
        values[_PEAK] = float(rate(max(1, schedule.warmup_steps) - 1))
    values = {key: value for key, value in values.items() if _is_open(config, key)}
    return override(config, values)


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
    check_has_config(workdir)
    old = open_run(workdir).config if (workdir / "config.json").exists() else None
    config, by_pairs = with_prepared(config, by_pairs)
    given = absolute_names(dataclasses.replace(config, data=resolve_data(config.data)))
    if old is not None:
        # What the given config leaves open, or the text's size chose, is as it is in the run.
        values: dict[str, Any] = {}
        open_keys = (*filter(partial(_is_open, given), _KEYS), *(by_pairs.keys if by_pairs else ()))
        for key in (*open_keys, *_own_tokenizers(given, workdir)):
            with contextlib.suppress(AttributeError):  # an option of another kind of variant
                values[key] = attrgetter(key)(old)
        config = override(given, values)
        if config.train.minutes is not None and config.train.minutes == old.train.minutes:
            values = {key: min(attrgetter(key)(config), attrgetter(key)(old)) for key in _AT_MOST}
            if _is_open(config, _PEAK):
                values[_PEAK] = attrgetter(_PEAK)(old)
            config = override(config, values)
        may_change = _MAY_CHANGE
        if not config.train.schedule.fixes_steps:  # a longer run begins as the shorter one
            may_change += ("train.steps.",)
        changed = differences(old, config)
        refused = [each for each in changed if not each.replace(":", ".", 1).startswith(may_change)]
        if not refused:
            if changed:
                _LOGGER.info("continuing with %s", "; ".join(changed))
            return Start(config, is_new=False, has_folder=True)
        # In a bucket no lock tells a start that failed from a run in progress.
        if in_bucket(workdir) or has_trained(workdir):
            hint = ""
            if any(change.startswith("train.steps:") for change in refused):
                kind = to_dict(config.train)["schedule"]["kind"]
                hint = f" (the learning rate of train.schedule={kind} depends on train.steps)"
            raise UserError(
                f"{workdir} holds a run with another config ({'; '.join(refused)}){hint}: "
                "use another folder, or the same config to continue; nothing was touched"
            )
        _LOGGER.info("nothing was trained in %s yet: starting anew", workdir)
    return Start(begin_new(given, by_pairs), is_new=True, has_folder=old is not None)


def _own_tokenizers(given: Config, workdir: epath.Path) -> list[str]:
    """Keys that name the run's own tokenizers, in whatever files they are now."""
    keys = []
    with contextlib.suppress(UserError):  # the run has none yet, or a file is not there
        tokenizers = open_run(workdir).tokenizers()
        for side in ("source", "target"):
            name = getattr(given.tokenizer, f"{side}_model")
            if name and file_digest(name) == getattr(tokenizers, side).fingerprint:
                keys.append(f"tokenizer.{side}_model")
    return keys


def _is_open(config: Config, key: str) -> bool:
    """Whether the config leaves a key of `_KEYS` to the first start."""
    return attrgetter(key)(config) in (None, "auto")


def check_training(config: Config) -> list[Languages]:
    """The directions with a validation set.

    Raises:
        UserError: the training asks for what the text or the model has not.
    """
    _check_alignments(config)
    check_splits(config.data)  # or a mistake in the test set is seen only after training
    evaluated = directions_with(config.data, "validation")
    patience = config.train.early_stopping
    if patience is not None and not evaluated:
        raise UserError(
            f"train.early_stopping={patience} needs a validation set: give "
            "data.source.validation_source and data.source.validation_target, or "
            "data.validation_from_train; or set train.early_stopping=none"
        )
    return evaluated


def _check_alignments(config: Config) -> None:
    """Raises UserError where alignments, the head that learns them and its weight do not fit."""
    has_alignments = any(corpus.source.alignments for corpus in config.data.parts)
    head = getattr(config.model.cross, "alignment_head", None)
    weight = config.train.alignment_weight
    if weight is None:
        if has_alignments or (head is not None and not config.train.init_from):
            what = "data.source.train_alignment" if has_alignments else "model.cross.alignment_head"
            raise UserError(
                f"{what}: no head learns alignments without train.alignment_weight: set it, such "
                "as train.alignment_weight=0.1, or leave it out"
            )
        return
    check_guided(config.model)
    if not has_alignments:
        raise UserError(
            f"train.alignment_weight={weight} needs word alignments of the training text: give "
            "data.source.train_alignment, as `score --alignments` of a first model writes them"
        )
    for key, is_set, why in (
        ("data.blocks", config.data.blocks, "alignments are of single sentences"),
        ("tokenizer.sampling_alpha", config.tokenizer.sampling_alpha, "links are of fixed pieces"),
    ):
        if is_set:
            raise UserError(f"train.alignment_weight={weight} and {key}: {why}; leave out one")


def for_its_text(config: Config, by_pairs: ByPairs | None, devices: list[jax.Device]) -> Config:
    """The config with the text that was prepared for it, and with the settings for a text's size.

    The text is read to count its pairs.

    Args:
        config: as the recipe and the command line give it.
        by_pairs: of the recipe.
        devices: that the run is for; none = any, so that the text alone decides.

    Raises:
        UserError: the text is damaged, or a value is wrong.
    """
    return _by_size(*with_prepared(config, by_pairs), devices)


def _by_size(config: Config, by_pairs: ByPairs | None, devices: list[jax.Device]) -> Config:
    if by_pairs is None or not by_pairs.keys:
        return config
    most, lacks_validation = max(by_pairs.below), lacks_own_validation(config.data)
    count = count_pairs(config.data, most)
    on_cpu = any(device.platform == "cpu" for device in devices)
    config = override(config, by_pairs.values(count, on_cpu=on_cpu))
    lines: dict[str, list[str]] = {}
    for key in by_pairs.keys:
        if key != "data.validation_from_train" or lacks_validation:
            part, _, name = key.partition(".")
            lines.setdefault(part, []).append(f"{name}={attrgetter(key)(config)}")
    first, listed = by_pairs.keys[0], (f"  {f'{k}:':<11}{'  '.join(v)}" for k, v in lines.items())
    _LOGGER.info(
        f"settings for {count:,}{' or more' if count == most else ''} training pairs, kept in "
        f"config.json; flags such as --config.{first}={attrgetter(first)(config)} change them:\n"
        + "\n".join(listed)
    )
    return config
