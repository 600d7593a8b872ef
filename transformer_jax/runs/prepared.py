"""How a run starts on a text that was prepared: its config with the text, ids and tokenizer."""

import dataclasses
from pathlib import Path

from transformer_jax.config import Config, differences, from_dict
from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.data.preparation import prepared_data
from transformer_jax.data.sources.base import absolute_name
from transformer_jax.data.sources.prepared import read_merged
from transformer_jax.errors import UserError
from transformer_jax.recipes import ByPairs

#: What of `data` may be given beside `data.prepared`; what is held out was settled before.
_FREE = ("prepared", "blocks", "source_language", "target_language", "validation_from_train")


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
    rest = dataclasses.replace(
        config.data, **{key: getattr(DataConfig(), key) for key in (*_FREE, "cache_dir")}
    )
    if changed := differences(DataConfig(), rest):
        key = changed[0].partition(":")[0]
        raise UserError(f"data.{key} is given beside data.prepared, which settles it: leave it out")
    for key in ("source_language", "target_language"):
        given, known = getattr(config.data, key), getattr(data, key)
        if given not in (None, known):
            raise UserError(f"data.{key}={given}: {folder} was prepared with {known}")
    if bool(config.data.blocks) != merged["blocks"]:
        was = "for" if merged["blocks"] else "without"
        raise UserError(f"data.prepared={folder}: it was prepared {was} data.blocks: do the same")
    tokenizer = from_dict(TokenizerConfig, merged["tokenizer"])
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
