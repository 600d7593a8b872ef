"""The base and the big model on this machine's devices, beside their plans.

    python benchmarks/device.py [--recipes=wmt14_en_de_base_tpu,wmt14_en_de_big_tpu] [--tokens=N]

For each recipe: the training step in milliseconds, tokens a second, share of the peak and memory,
and a search with the recipe's method. The sentences are random pieces, all of the longest length,
so no text is needed. Compiling takes most of the time; it should take less than ten minutes on one
GPU or TPU. Begin with `transformer-jax check`, which says whether the numbers are right.
"""

import argparse
import dataclasses

import transformer_jax as tj
from transformer_jax.checks import machine
from transformer_jax.checks.speed import measure
from transformer_jax.plan.topologies import this_machine

RECIPES = ("wmt14_en_de_base_tpu", "wmt14_en_de_big_tpu")


def main() -> None:
    """Prints a line for each number."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recipes", default=",".join(RECIPES), help="recipes or files, by commas")
    parser.add_argument("--tokens", type=int, default=16_384, help="pieces a side, a device")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each measurement")
    arguments = parser.parse_args()
    for row in machine.rows():
        print(f"{row.name}: {row.text}", flush=True)
    target = this_machine()
    for name in arguments.recipes.split(","):
        config = tj.load_recipe(name)
        tokens = arguments.tokens * len(target.devices)
        config = dataclasses.replace(config, batch=dataclasses.replace(config.batch, tokens=tokens))
        for row in measure(config, target, name, seconds=arguments.seconds):
            print(f"{name}: {row.name}: {row.text}", flush=True)


if __name__ == "__main__":
    main()
