"""Writes a trained model for another runtime: `export(run, "ctranslate2", "out")`."""

import dataclasses
import os

from etils import epath

from transformer_jax.errors import UserError, as_user_error
from transformer_jax.formats.card import card
from transformer_jax.formats.exporter import Exporter, TrainedModel
from transformer_jax.formats.exporters import EXPORTERS
from transformer_jax.formats.run_folder import read_run
from transformer_jax.paths import as_path, in_bucket, remove_folder, temporary_name
from transformer_jax.runs.folder import Run
from transformer_jax.settings.variants import OneOf


def export(
    run: Run,
    format: str | Exporter,
    output: str | os.PathLike[str],
    *,
    checkpoint: str = "best",
    licence: str | None = None,
) -> epath.Path:
    """Writes the model of a run into a new folder.

    Args:
        run: from `open_run`.
        format: a name, with options in parentheses, or the object that it stands for:
            `"ctranslate2(quantization=int8)"` or `CTranslate2(quantization="int8")`.
        output: the folder, which must not exist. It appears when it is complete.
        checkpoint: as `which` of `Run.params`.
        licence: of the model, for its card, `README.md`, such as cc-by-4.0.

    Returns:
        The folder.

    Raises:
        UserError: `output` exists, the format is unknown or cannot express the model, a package
            is missing, or the checkpoint cannot be read.
    """
    exporter, folder = parsed(format), as_path(output)
    if in_bucket(folder):
        raise UserError(f"output={folder}: give a folder on a disk")
    if folder.exists():
        raise UserError(f"output={folder} exists: nothing was written; choose another name")
    exporter.check(dataclasses.replace(run.config, model=run.model))
    readme = card(run, exporter, licence)
    write(exporter, read_run(run, checkpoint), folder, readme)
    return folder


def parsed(format: str | Exporter) -> Exporter:
    """A format by its name, with options in parentheses.

    Raises:
        UserError: there is none, or an option is not one of it.
    """
    with as_user_error("format:", ValueError):
        return OneOf(EXPORTERS).parse(format)


def write(
    exporter: Exporter, model: TrainedModel, folder: epath.Path, readme: str | None = None
) -> None:
    """Writes the files of a format, and a card, into a folder that appears when it is complete."""
    temporary = temporary_name(folder)
    try:
        with as_user_error(f"output={folder}:", OSError):
            temporary.mkdir(parents=True)
            exporter.write(model, temporary)
            if readme is not None:
                (temporary / "README.md").write_text(readme)
            temporary.rename(folder)
    finally:
        remove_folder(temporary)
