"""How a run starts on a text that was prepared: its config with the text, ids and tokenizer."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etils import epath

from transformer_jax.config import Config, from_dict, validated, walk
from transformer_jax.data.config import Corpus, DataConfig, TokenizerConfig
from transformer_jax.data.noise.registry import NOISES
from transformer_jax.data.sources.files import Files, file_digest
from transformer_jax.data.sources.prepared import Prepared, read_merged
from transformer_jax.data.tokenizer_pair import model_files
from transformer_jax.errors import UserError
from transformer_jax.recipes import ByPairs
from transformer_jax.settings.file_names import absolute_name
from transformer_jax.settings.keys import adapter
from transformer_jax.settings.variants import to_text

#: Of the source and of the target.
Models = tuple[epath.Path, epath.Path]


def with_prepared(config: Config, by_pairs: ByPairs | None) -> tuple[Config, ByPairs | None]:
    """The config with what `data.prepared` names, and what depends on the size of its text.

    Args:
        config: as the recipe and the command line give it; it is validated.
        by_pairs: of the recipe.

    Raises:
        UserError: a value is wrong, the folder has no prepared text, or the config does not go
            with it.
    """
    config = validated(config)
    if config.data.prepared is None:
        return config, by_pairs
    folder = absolute_name(config.data.prepared)
    merged, data = read_merged(folder), prepared_data(Path(folder))
    settings = merged["settings"]
    chosen = by_pairs.keys if by_pairs else ()
    _check(config.data, settings, chosen, folder)
    prepared = from_dict(TokenizerConfig, settings["tokenizer"])
    models = model_files(epath.Path(folder, "tokenizer"))
    _check_tokenizer(config.tokenizer, prepared, models, chosen, folder)
    tokenizer = TokenizerConfig(
        joint=models[0] == models[1],
        source_model=str(models[0]),
        target_model=None if models[0] == models[1] else str(models[1]),
        sampling_alpha=prepared.sampling_alpha,
    )
    data = dataclasses.replace(data, blocks=config.data.blocks)
    without = by_pairs and by_pairs.without({"tokenizer", "data"})
    return dataclasses.replace(config, data=data, tokenizer=tokenizer), without


def corpora_settings(data: DataConfig) -> dict[str, Any]:
    """What of the settings a config tells without its text: what is trained on and how."""
    return {
        "corpora": [
            [*each.direction, each.tag, each.weight, [to_text(one, NOISES) for one in each.noise]]
            for each in data.parts
        ],
        "languages": list(data.languages),
        "temperature": data.temperature,
        **use_settings(data),
    }


def use_settings(data: DataConfig) -> dict[str, Any]:
    """What of `corpora_settings` does not depend on the corpora."""
    return {
        "filters": adapter(DataConfig).dump_python(data, mode="json")["filters"],
        "blocks": bool(data.blocks),
    }


def prepared_data(folder: Path) -> DataConfig:
    """What a training reads of a prepared text, in place of the text itself.

    Raises:
        UserError: the folder has no prepared text.
    """
    merged = read_merged(folder)
    sources = [Prepared(str(folder), number) for number in range(len(merged["corpora"]))]
    if merged["is_one"]:
        texts: dict[str, Any] = {"source": sources[0]}
    else:
        texts = {
            "temperature": merged["settings"]["temperature"],
            "corpora": tuple(
                Corpus(source, (one, other), tag=tag, weight=weight)
                for source, (one, other, tag, weight, _) in zip(  # the noise is in the text
                    sources, merged["settings"]["corpora"], strict=True
                )
            ),
        }
    source, target = merged["settings"]["languages"]
    return DataConfig(
        **texts, source_language=source, target_language=target, cache_dir=str(folder / "ids")
    )


def _check_tokenizer(
    given: TokenizerConfig, made: TokenizerConfig, models: Models, keys: Sequence[str], folder: str
) -> None:
    """Checks that what a config says of its tokenizers is what they were prepared with.

    Models that it names are compared by their content, as those of `train.init_from`. What the size
    of the text chooses, the `keys`, was chosen when it was prepared.
    """
    if given.source_model is not None:
        named = given.source_model, given.target_model or given.source_model
        for side, path, own in zip(("source", "target"), named, models, strict=True):
            if file_digest(path) != file_digest(str(own)):
                raise UserError(
                    f"tokenizer.{side}_model={path}: {folder} was prepared with another model: "
                    "prepare the text again with this one"
                )
        made = dataclasses.replace(given, sampling_alpha=made.sampling_alpha)
    for key, _, (had, wanted, default) in walk(made, given, TokenizerConfig()):
        if wanted not in (had, default) and f"tokenizer.{key}" not in keys:
            raise UserError(
                f"tokenizer.{key}={wanted}: {folder} was prepared with {had}: leave it out"
            )


def _check(given: DataConfig, settings: dict[str, Any], keys: Sequence[str], folder: str) -> None:
    """Checks that the text that a config names, or none, is used as the prepared one.

    What the size of the text chooses, the `keys`, was chosen when it was prepared.
    """
    if given.source != Files() or given.corpora:
        found = corpora_settings(given)
    else:
        named = given.source_language, given.target_language
        languages = zip(named, settings["languages"], strict=True)
        found = {"languages": [own or known for own, known in languages]} | use_settings(given)
    if given.filters == ():
        found["filters"] = settings["filters"]  # they have been applied
    for key in ("temperature", "validation_from_train"):
        value = getattr(given, key)
        if value != getattr(DataConfig(), key) and f"data.{key}" not in keys:
            found[key] = value
    for key, value in found.items():
        if value != settings[key]:
            raise UserError(
                f"data.prepared={folder}: it was prepared with {key} {settings[key]}, and the "
                f"config has {value}: give the same, or prepare the text again"
            )
