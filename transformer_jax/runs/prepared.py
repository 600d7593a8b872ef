"""How a run starts on a text that was prepared: its config with the text, ids and tokenizer."""

import dataclasses
from pathlib import Path
from typing import Any

from transformer_jax.config import Config, differences, from_dict
from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.data.preparation import corpora_settings, prepared_data, use_settings
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.prepared import read_merged
from transformer_jax.errors import UserError
from transformer_jax.paths import absolute_name
from transformer_jax.recipes import ByPairs


def with_prepared(config: Config, by_pairs: ByPairs | None) -> tuple[Config, ByPairs | None]:
    """The config with what `data.prepared` names, and what depends on the size of its text.

    Args:
        config: as the recipe and the command line give it, validated.
        by_pairs: of the recipe.

    Raises:
        UserError: the folder has no prepared text, or the config does not go with it.
    """
    if config.data.prepared is None:
        return config, by_pairs
    folder = absolute_name(config.data.prepared)
    merged, data = read_merged(folder), prepared_data(Path(folder))
    settings = merged["settings"]
    _check(config.data, settings, folder)
    tokenizer = from_dict(TokenizerConfig, settings["tokenizer"])
    for change in differences(tokenizer, config.tokenizer):
        key, _, values = change.partition(": ")
        had, _, wanted = values.partition(" -> ")
        if wanted != str(getattr(TokenizerConfig(), key)):
            raise UserError(
                f"tokenizer.{key}={wanted}: {folder} was prepared with {had}: leave it out"
            )
    models = [Path(folder, "tokenizer", f"{name}.model") for name in ("joint", "source", "target")]
    joint = models[0].exists()
    given_models = dataclasses.replace(
        TokenizerConfig(),
        joint=joint,
        source_model=str(models[0 if joint else 1]),
        target_model=None if joint else str(models[2]),
        sampling_alpha=tokenizer.sampling_alpha,
    )
    data = dataclasses.replace(data, blocks=config.data.blocks)
    without = by_pairs and by_pairs.without({"tokenizer", "data"})
    return dataclasses.replace(config, data=data, tokenizer=given_models), without


def _check(given: DataConfig, settings: dict[str, Any], folder: str) -> None:
    """Checks that the text that a config names, or none, is used as the prepared one."""
    if given.source != Files() or given.corpora:
        found = corpora_settings(given)
    else:
        named = given.source_language, given.target_language
        languages = zip(named, settings["languages"], strict=True)
        found = {"languages": [own or known for own, known in languages]} | use_settings(given)
    if given.filters == ():
        found["filters"] = settings["filters"]  # they have been applied
    for key, value in found.items():
        if value != settings[key]:
            raise UserError(
                f"data.prepared={folder}: it was prepared with {key} {settings[key]}, and the "
                f"config has {value}: give the same, or prepare the text again"
            )
