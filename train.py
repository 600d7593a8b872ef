"""Trains a model: `python train.py --config=configs/quickstart.py --workdir=runs/quickstart`."""

import sys

from transformer_jax.commands.main import main

if __name__ == "__main__":
    sys.argv.insert(1, "train")
    sys.exit(main())
