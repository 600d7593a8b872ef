"""Runs that others begin with or learn from: `train.init_from` and `train.teacher`."""

import dataclasses
import logging
import os
from operator import attrgetter
from typing import Any

from etils import epath

from transformer_jax.config import Config, differences
from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.data.sources.files import Files
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError
from transformer_jax.models.api import abstract_params
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.paths import by_path
from transformer_jax.models.quantization import NoQuantization
from transformer_jax.runs.checkpoints import has_trained
from transformer_jax.runs.folder import Run, open_run
from transformer_jax.settings.file_names import absolute_name

_LOGGER = logging.getLogger(__name__)

_FIRST, TEACHER = "train.init_from", "train.teacher.run"


def starting_from(
    config: Config, init_from: str, workdir: epath.Path | None = None, *, on_its_text: bool = False
) -> Config:
    """The recipe of a run that begins with the parameters of another.

    The model, the tokenizers, the languages and the decoding are those of that run, in place of
    the recipe's. How to compute is the recipe's: `model.dtype` and `model.matmul_dtype`; and so is
    what is trained beside the model, `model.adapter`.
    `batch.max_length` is lowered to what the model can read.

    Args:
        config: says how to train.
        init_from: the folder of the other run.
        workdir: the folder of this run. If it was trained there before, what is taken from
            `init_from` is taken from there, and `init_from` need not exist any more.
        on_its_text: whether the text is that run's too, if the recipe names none.

    Raises:
        UserError: there is no run in `init_from`.
    """
    place = absolute_name(init_from)
    run = open_run(workdir) if workdir is not None and has_trained(workdir) else None
    if run is None or run.config.train.init_from != place:
        run = open_named(_FIRST, place)
    taken, tokenizer = run.config, given_by(run)
    names_text = config.data.source != Files() or bool(config.data.corpora) or config.data.prepared
    text = taken.data if on_its_text and not names_text else config.data
    # Its other parameters are not those of a file of int8.
    decode = dataclasses.replace(taken.decode, weights="float")
    if config.data.blocks:  # other ones in training, and so in translation
        decode = dataclasses.replace(decode, block_tokens=None, block_sentences=None)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(text, **languages_of(taken.data, config.data)),
        tokenizer=dataclasses.replace(tokenizer, sampling_alpha=config.tokenizer.sampling_alpha),
        batch=dataclasses.replace(
            config.batch, max_length=min(config.batch.max_length, taken.model.max_length)
        ),
        model=_computed_as(run.model, config.model),
        train=dataclasses.replace(config.train, init_from=place),
        decode=decode,
    )


def _computed_as(model: ModelConfig, other: ModelConfig) -> ModelConfig:
    """A model with what is trained beside another, and with its dtypes."""
    names = ("adapter", "dtype", "matmul_dtype")
    return dataclasses.replace(model, **{name: getattr(other, name) for name in names})


def languages_of(*texts: DataConfig) -> dict[str, Any]:
    """The languages, each as the first text that names it does."""
    keys = ("source_language", "target_language")
    return {key: next(filter(None, map(attrgetter(key), texts)), None) for key in keys}


def open_named(key: str, folder: str) -> Run:
    """The run in a folder that a key of the config names.

    Raises:
        UserError: there is none; the message names the key.
    """
    try:
        return open_run(folder)
    except UserError as error:
        raise UserError(f"{key}={folder}: {str(error).removeprefix(f'{folder}: ')}") from error


def given_by(run: Run) -> TokenizerConfig:
    """The run's tokenizers as given models."""
    names = list(run.tokenizers().files())
    source, target = (os.fspath(run.path / "tokenizer" / name) for name in (names[0], names[-1]))
    return TokenizerConfig(joint=len(names) == 1, source_model=source, target_model=target)


def check_named(config: Config, tokenizers: Tokenizers | None, *, is_new: bool) -> dict[str, str]:
    """Checks that the runs which a config names fit it; logs what is different.

    Args:
        config: of the training.
        tokenizers: its tokenizers; None where they are not made yet, and not compared.
        is_new: whether it begins; a run that is continued has its own parameters.

    Returns:
        What determines the training besides its config: the teacher's checkpoint.

    Raises:
        UserError: they don't fit; or there is no such run, or no checkpoint in it.
    """
    first, teacher = config.train.init_from, config.train.teacher
    if first and is_new:
        run = _open_checked(_FIRST, first, tokenizers)
        checkpoint = run.select("best").name
        _LOGGER.info("starting with the parameters of %s, %s", run.path, checkpoint)
        _check_shapes(config, run)
    if not teacher.run:
        return {}
    run = _open_checked(TEACHER, teacher.run, tokenizers)
    most = min(run.model.max_length, config.model.max_length)
    if config.batch.max_length > most:
        raise UserError(
            f"{TEACHER}={teacher.run}: it reads at most {most} pieces, and "
            f"batch.max_length={config.batch.max_length}"
        )
    if teacher.pieces > (size := run.tokenizers().target.vocab_size):
        raise UserError(f"train.teacher.pieces={teacher.pieces}: there are only {size} pieces")
    return {"teacher": run.fingerprint()}


def _open_checked(key: str, folder: str, tokenizers: Tokenizers | None) -> Run:
    """The run that a key of the config names; its tokenizers are these."""
    run = open_named(key, folder)
    if tokenizers is not None and (side := tokenizers.differ_in(run.tokenizers())):
        raise UserError(
            f"{key}={folder}: the {side} tokenizer of this run is not the one of that run: "
            "leave the keys of the tokenizer as they are there, or name its models as "
            "tokenizer.source_model and tokenizer.target_model"
        )
    return run


def _check_shapes(config: Config, run: Run) -> None:
    """Checks that the parameters of a run fit the model; logs what is different."""
    model = _computed_as(config.model, run.model)
    changed = differences(run.model, model)
    # The factors of a quantization are measured anew.
    plain = (dataclasses.replace(each, quantize=NoQuantization()) for each in (run.model, model))
    leaves = (by_path(abstract_params(each)) for each in plain)
    theirs, ours = ({path: leaf.shape for path, leaf in each.items()} for each in leaves)
    for path in sorted(theirs.keys() | ours.keys()):
        if theirs.get(path) != ours.get(path):
            there, here = (shapes.get(path, "none") for shapes in (theirs, ours))
            raise UserError(
                f"{_FIRST}={config.train.init_from}: the shape of {path} is {there} there and "
                f"{here} here: leave these keys as they are there (model."
                f"{', model.'.join(changed)})"
            )
    if changed:
        _LOGGER.info("the model differs from that one's in model.%s", ", model.".join(changed))
