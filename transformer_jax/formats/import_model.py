"""Makes a run folder out of a published model."""

import os
from dataclasses import replace
from pathlib import Path

from transformer_jax.config import Config, TrainConfig
from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.data.language_tags import towards
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.formats import hub, safetensors
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.formats.families import FAMILIES
from transformer_jax.formats.family import Languages, Published, search
from transformer_jax.formats.marian.files import find_marian, open_marian
from transformer_jax.formats.new_language import with_language
from transformer_jax.formats.run_folder import check_no_run, write_run
from transformer_jax.models.config import check_model_config
from transformer_jax.runs.folder import Run
from transformer_jax.weights.layout import ModelFolder, read_folder
from transformer_jax.weights.marian_items import with_paths

#: What a file begins with that Git LFS put in the place of another.
_POINTER = b"version https://git-lfs"
#: How names of files end that browsers get.
_PACKED = (".gz", ".zst")


def import_model(
    folder: str | os.PathLike[str],
    workdir: str | os.PathLike[str],
    *,
    revision: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    add_language: str | None = None,
    from_language: str | None = None,
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
        add_language: a language that the model lacks: it gets a language token
            (`formats/new_language.py`), and may be the source or the target.
        from_language: whose row of the embeddings the new one copies; None: the mean of all.

    Raises:
        UserError: a file is missing or damaged, the architecture cannot be expressed, there is
            a run in `workdir`, or the hub does not give the model. Nothing is written then.
    """
    check_no_run(workdir)
    if from_language and not add_language:
        raise UserError(f"from_language={from_language}: name the new language with add_language")
    folder = _local(folder, revision)
    if safetensors.is_exported(folder):
        if source_language or target_language or add_language:
            raise UserError(f"{folder} knows its languages: do not name them")
        return write_run(workdir, safetensors.read(folder))
    asked = Languages(source_language, target_language)
    found = open_folder(folder)
    published = read_model(found, _without(add_language, asked))
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
            method=search(found.generation),
            max_length_factor=found.generation.get(
                "max_length_factor", float, DecodeConfig.max_length_factor
            ),
            max_source_length=max(2, model.max_length),
            weights="float" if found.int8 is None else "int8",
        ),
    )
    int8 = None if found.int8 is None else with_paths(found.int8, published.table)
    made = TrainedModel(config, params, tokenizers, int8)
    if add_language:
        made = _in_languages(with_language(made, add_language, from_language), asked)
    return write_run(workdir, made)


def _without(new: str | None, asked: Languages) -> Languages:
    """The languages to read a model in that lacks one of them: the other one in its place."""
    other = next((code for code in asked if code != new), None)
    return Languages(*(other if new and code == new else code for code in asked))


def _in_languages(model: TrainedModel, languages: Languages) -> TrainedModel:
    """The model with these as its languages, where they are given."""
    given = {f"{side}_language": code for side, code in languages._asdict().items() if code}
    data = replace(model.config.data, **given)
    tokenizers = towards(model.tokenizers, *languages)
    tokenizer = replace(model.config.tokenizer, joint=tokenizers.joint)
    config = replace(model.config, data=data, tokenizer=tokenizer)
    return model._replace(config=config, tokenizers=tokenizers)


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
    for file in sorted(each for each in path.iterdir() if each.is_file()):
        with open(file, "rb") as content:
            if content.read(len(_POINTER)) == _POINTER:
                raise UserError(
                    f"{file}: a pointer of Git LFS, which stands for the file: get it with "
                    "`git lfs pull`"
                )
        if file.suffix in _PACKED and not file.with_suffix("").exists():
            raise UserError(f"{file}: is compressed: unpack it")
    if model := find_marian(path):
        return open_marian(model)
    return read_folder(path)


def read_model(folder: ModelFolder, languages: Languages) -> Published:
    """The model in our terms, without its parameters.

    Raises:
        UserError: no family reads it, or it cannot be expressed.
    """
    published = folder.config.choose("model_type", FAMILIES)(folder, languages)
    check_model_config(published.model)
    return published
