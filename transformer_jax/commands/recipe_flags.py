"""The recipe that several commands take, with the flags that change it."""

import argparse

from transformer_jax.config import override
from transformer_jax.recipes import Recipe, open_recipe


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The recipe with the flags, which also replace what depends on the size of the text.

    With `train.init_from` the flags change the model of that run; its text is that run's if neither
    the recipe nor a flag names one.
    """
    config, by_pairs = open_recipe(args.config)
    given = set(args.flags)
    init_from = override(config, {k: v for k, v in args.flags.items() if k == "train.init_from"})
    if init_from.train.init_from:
        from transformer_jax.runs.pretrained import starting_from

        texts = ("data.source.", "data.corpora.", "data.prepared.")
        its_text = not any(f"{flag}.".startswith(texts) for flag in given)
        workdir = getattr(args, "workdir", None)  # `prepare` has none
        config = starting_from(config, init_from.train.init_from, workdir, on_its_text=its_text)
        given |= {"model", "tokenizer"}
    return Recipe(override(config, args.flags), by_pairs and by_pairs.without(given))
