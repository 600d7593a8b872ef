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

#: Settings that no program depends on (tests/training/test_duration.py), and values to try.
LEFT_OUT = {"steps": 5, "minutes": 1.0, "init_from": "a run", "log_every": 9}
LEFT_OUT |= {"evaluate_every": 9, "checkpoint_every": 9}

_kept = functools.lru_cache(maxsize=8)(ALONE)


def shared(model, train, mesh, loss):
    """The programs of a trainer."""
    general = replace(train, **{name: getattr(TrainConfig, name) for name in LEFT_OUT})
    return (ALONE if loss else _kept)(model, general, mesh, loss)


def install():
    trainer.Programs = shared
