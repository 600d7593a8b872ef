"""Runs that others begin with or learn from: `train.init_from` and `train.teacher`."""

import dataclasses
import logging
import os
from typing import Any

from etils import epath
from jax.sharding import Mesh

from transformer_jax.config import Config, differences
from transformer_jax.data.config import TokenizerConfig
from transformer_jax.data.sources.files import Files
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.models.api import abstract_params
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.paths import by_path
from transformer_jax.models.quantization import NoQuantization
from transformer_jax.models.teachers import Teacher
from transformer_jax.runs.checkpoints import has_trained
from transformer_jax.runs.folder import Run, open_run
from transformer_jax.settings.file_names import absolute_name

_LOGGER = logging.getLogger(__name__)

_FIRST, _TEACHER = "train.init_from", "train.teacher.run"


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
    own = None
    if workdir is not None and has_trained(workdir):
        own = open_run(workdir)
        own = own if own.config.train.init_from == place else None
    run = own or open_named(_FIRST, place)
    taken, tokenizer = run.config, given_by(run)
    names_text = config.data.source != Files() or bool(config.data.corpora) or config.data.prepared
    return dataclasses.replace(
        config,
        data=dataclasses.replace(
            taken.data if on_its_text and not names_text else config.data,
            source_language=taken.data.source_language or config.data.source_language,
            target_language=taken.data.target_language or config.data.target_language,
        ),
        tokenizer=dataclasses.replace(tokenizer, sampling_alpha=config.tokenizer.sampling_alpha),
        batch=dataclasses.replace(
            config.batch, max_length=min(config.batch.max_length, taken.model.max_length)
        ),
        model=_computed_as(run.model, config.model),
        train=dataclasses.replace(config.train, init_from=place),
        decode=_decoding(taken.decode, other_blocks=bool(config.data.blocks)),
    )


def _computed_as(model: ModelConfig, other: ModelConfig) -> ModelConfig:
    """A model with what is trained beside another, and with its dtypes."""
    names = ("adapter", "dtype", "matmul_dtype")
    return dataclasses.replace(model, **{name: getattr(other, name) for name in names})


def _decoding(taken: DecodeConfig, *, other_blocks: bool) -> DecodeConfig:
    """That of the other run, for other parameters: they are not those of a file of int8."""
    taken = dataclasses.replace(taken, weights="float")
    if other_blocks:  # in training, and so in translation
        taken = dataclasses.replace(taken, block_tokens=None, block_sentences=None)
    return taken


def open_named(key: str, folder: str) -> Run:
    """The run in a folder that a key of the config names.

    Raises:
        UserError: there is none; the message names the key.
    """
    try:
        return open_run(folder)
    except UserError as error:
        raise UserError(f"{key}={folder}: {str(error).removeprefix(f'{folder}: ')}") from error


def open_teacher(teacher: Teacher, mesh: Mesh) -> tuple[ModelConfig, Any]:
    """The model that `train.teacher` names, and the parameters of its best checkpoint."""
    run = open_named(_TEACHER, teacher.run)
    return run.model, run.params("best", mesh)


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
    opened = {
        key: _open_checked(key, folder, tokenizers)
        for key, folder in ((_FIRST, first if is_new else None), (_TEACHER, teacher.run))
        if folder
    }
    if _FIRST in opened:
        run = opened[_FIRST]
        checkpoint = run.select("best").name
        _LOGGER.info("starting with the parameters of %s, %s", run.path, checkpoint)
        _check_shapes(config, run)
    if _TEACHER not in opened:
        return {}
    run = opened[_TEACHER]
    most = min(run.model.max_length, config.model.max_length)
    if config.batch.max_length > most:
        raise UserError(
            f"{_TEACHER}={teacher.run}: it reads at most {most} pieces, and "
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
