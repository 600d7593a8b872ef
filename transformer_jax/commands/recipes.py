"""Lists the recipes that come with the package, with their measured scores.

    transformer-jax recipes
    transformer-jax train --config=quickstart --workdir=runs/quickstart

To change a recipe, copy its file and give the copy as --config.
"""

import argparse

from transformer_jax.recipes import describe, recipe_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no flags."""


def run(args: argparse.Namespace) -> None:
    """Prints three lines for each recipe: name and summary, score, file."""
    for name, file in recipe_files().items():
        about = describe(file)
        print(f"{name}: {about['Summary']}\n    {about['Score']}\n    {file}")
