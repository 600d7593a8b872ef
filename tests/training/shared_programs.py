"""Trainers of equal settings share what they compile, in all tests of a process.

To trace and compile its step takes most of the time of a toy training, and most tests train by one
of two recipes. A command of a user's compiles its own.
"""

import functools
from dataclasses import replace

from transformer_jax.config import TrainConfig
from transformer_jax.training import trainer

#: Makes programs of its own; a test that changes what is traced puts it in place of `shared`.
ALONE = trainer.Programs

_kept = functools.lru_cache(maxsize=8)(ALONE)


def shared(model, train, mesh, loss):
    """The programs of a trainer, which depend on neither length nor logs."""
    names = ("steps", "minutes", "init_from", "log_every", "evaluate_every", "checkpoint_every")
    general = replace(train, **{name: getattr(TrainConfig, name) for name in names})
    return (ALONE if loss else _kept)(model, general, mesh, loss)


def install():
    trainer.Programs = shared
