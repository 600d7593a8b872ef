"""Makes a run folder out of a published model."""

import os
from pathlib import Path

from transformer_jax.config import Config, TrainConfig
from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.interop import hub
from transformer_jax.interop.exporters import safetensors
from transformer_jax.interop.exporters.base import TrainedModel
from transformer_jax.interop.families.base import Languages, ModelFolder, Published, search
from transformer_jax.interop.families.registry import FAMILIES
from transformer_jax.interop.marian_files import find_marian, open_marian
from transformer_jax.interop.run_folder import check_no_run, write_run
from transformer_jax.interop.settings import Settings, read_json
from transformer_jax.interop.weight_files import read_weights
from transformer_jax.models.config import check_model_config
from transformer_jax.runs.folder import Run


def import_model(
    folder: str | os.PathLike[str],
    workdir: str | os.PathLike[str],
    *,
    revision: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> Run:
    """Writes a run folder with the weights, the tokenizers and the config of a published model.

    Args:
        folder: the downloaded files: `config.json`, weights, the SentencePiece models and what
            numbers their pieces; or what `export` wrote as safetensors, which is read to the bit.
            A name on Hugging Face's hub is fetched: `Helsinki-NLP/opus-mt-en-de`.
        workdir: the run folder to write; must not hold a run.
        revision: of a name on the hub: a branch, tag or commit; None: the newest.
        source_language: as the model spells it, such as `eng_Latn`; needed by families with
            language tokens.
        target_language: the same.

    Raises:
        UserError: a file is missing or damaged, the architecture cannot be expressed, there is
            a run in `workdir`, or the hub does not give the model. Nothing is written then.
    """
    check_no_run(workdir)
    folder = _local(folder, revision)
    if safetensors.is_exported(folder):
        if source_language or target_language:
            raise UserError(f"{folder} knows its languages: do not name them")
        return write_run(workdir, safetensors.read(folder))
    languages = Languages(source_language, target_language)
    found = open_folder(folder)
    published = read_model(found, languages)
    model, tokenizers = published.model, published.tokenizers
    params = published.table.to_params(model, found.weights)
    sizes = {tokenizers.source.vocab_size, tokenizers.target.vocab_size}
    config = Config(
        data=DataConfig(
            source_language=published.languages.source, target_language=published.languages.target
        ),
        tokenizer=TokenizerConfig(
            joint=tokenizers.joint, vocab_size=sizes.pop() if len(sizes) == 1 else None
        ),
        model=model,
        train=TrainConfig(keep_checkpoints=1),
        decode=DecodeConfig(
            method=search(found.generation), max_source_length=max(2, model.max_length)
        ),
    )
    return write_run(workdir, TrainedModel(config, params, tokenizers))


def _local(folder: str | os.PathLike[str], revision: str | None) -> str | os.PathLike[str]:
    """The folder itself, or that of a name on the hub."""
    if not Path(folder).is_dir() and hub.is_name(os.fspath(folder)):
        return hub.fetch(os.fspath(folder), revision)
    if revision:
        raise UserError(f"revision={revision} is of a name on the hub, and {folder} is none")
    return folder


def open_folder(folder: str | os.PathLike[str]) -> ModelFolder:
    """The files of a published model; the weights are read when they are asked for.

    Raises:
        UserError: there is no such folder or no `config.json` in it, or there are no weights that
            can be read.
    """
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"{folder}: no such folder")
    if model := find_marian(path):
        return open_marian(model)
    files = [path / "config.json", path / "generation_config.json"]
    if not files[1].is_file():
        files[1] = files[0]
    config, generation = (Settings(str(file), read_json(file)) for file in files)
    return ModelFolder(path, config, generation, read_weights(path))


def read_model(folder: ModelFolder, languages: Languages) -> Published:
    """The model in our terms, without its parameters.

    Raises:
        UserError: no family reads it, or it cannot be expressed.
    """
    family = folder.config.choose("model_type", FAMILIES)
    published = family(folder, languages)
    check_model_config(published.model)
    return published
