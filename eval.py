"""Scores a trained model: `python eval.py --workdir=runs/quickstart --split=test`."""

import sys

from transformer_jax.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["eval", *sys.argv[1:]]))
