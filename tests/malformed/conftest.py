"""A place with a recipe and texts, and a trained run to damage."""

import shutil

import jax
import jax.numpy as jnp
import pytest

from tests import shared_programs
from tests.malformed.harness import RECIPE, TEXT, command, training
from transformer_jax.data import pipeline
from transformer_jax.training import trainer
from transformer_jax.training.step import Step


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a recipe and two texts."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "recipe.py").write_text(RECIPE)
    for name in ("train.en", "train.de"):
        (folder / name).write_text("\n".join(TEXT) + "\n")
    return folder


@pytest.fixture(scope="module")
def trained(place):
    """A run folder as training writes it, of one step that changes nothing.

    Compiling a real one, and importing TensorFlow to feed it, would take most of this file's time.
    """

    def gradient(params, step, batch):
        return params, {"loss_sum": jnp.float32(1), "nll_sum": jnp.float32(1), "tokens": 1.0}

    def update(state, gradient, horizon):
        metrics = gradient[1] | {"grad_norm": 1.0, "finite": True}
        return state, metrics | {"skipped": 0.0, "skipped_in_a_row": 0.0}

    halves = Step(jax.jit(gradient), jax.jit(update), whole=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "has_tensorflow", lambda: False)
        patch.setattr(trainer, "Programs", shared_programs.ALONE)  # no other run shares these
        patch.setattr(trainer, "make_train_step", lambda *_: halves)
        assert command(*training(place, place / "run"))[0] == 0
    return place / "run"


@pytest.fixture
def copy_of(trained, tmp_path_factory):
    """copy_of() -> a copy of the run folder, for a test to damage."""

    def copy():
        folder = tmp_path_factory.mktemp("copy") / "run"
        shutil.copytree(trained, folder)
        return folder

    return copy
