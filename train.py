"""Trains a model: `python train.py --config=configs/quickstart.py --workdir=runs/quickstart`."""

import sys

from transformer_jax.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
