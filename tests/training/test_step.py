"""One training step: a true mean over target tokens, however the batch is cut."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import optax
import pytest

from tests.training import toy
from transformer_jax.models import api
from transformer_jax.models.paths import trained_paths
from transformer_jax.optimizers.optimizers import OPTIMIZERS
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.training import step as training_step
from transformer_jax.training.step import Objective, mean_of, options_for, sum_gradients
from transformer_jax.training.trainer import Trainer

PARAMS = jax.jit(api.init, static_argnums=0)(toy.MODEL, jax.random.key(0))
BATCH = toy.batch(0)


def assert_close(got, want, atol=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), got, want)


@partial(jax.jit, static_argnums=0)
def gradients_of(train, params, batch):
    objective = Objective(toy.MODEL, train, trained_paths(train.frozen, params))
    return mean_of(sum_gradients(objective, params, batch, rng=None))


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_gradient_is_that_of_the_mean_over_tokens(accumulate):
    train = replace(toy.TRAIN, accumulate=accumulate)
    grads, sums = gradients_of(train, PARAMS, BATCH)

    def mean_loss(params):
        smoothing = train.label_smoothing
        loss_sum, _, tokens = api.loss(toy.MODEL, params, BATCH, label_smoothing=smoothing)
        return loss_sum / tokens

    assert_close(grads, jax.jit(jax.grad(mean_loss))(PARAMS))
    assert sums["tokens"] == BATCH["target_mask"].sum()


@pytest.mark.parametrize("frozen", [(), ("*/bias", "*/scale")])
def test_the_norm_of_joined_gradients_is_that_of_the_mean(frozen):
    """As on a GPU; also where no vector is trained."""
    train = replace(toy.TRAIN, frozen=frozen)
    objective = Objective(toy.MODEL, train, trained_paths(train.frozen, PARAMS))
    total = jax.jit(partial(sum_gradients, objective, rng=None))(PARAMS, BATCH)
    assert frozen == () or all(x.ndim > 1 for x in jax.tree.leaves(total[0]))
    grads = mean_of(total)[0]
    joined = training_step._norm(total, grads, joined=True)
    np.testing.assert_allclose(joined, optax.global_norm(grads), rtol=1e-6)


def test_filling_rows_change_nothing():
    full = jax.tree.map(lambda x: np.concatenate([x, np.ones_like(x)]), BATCH)
    for key in ("source_mask", "target_mask"):
        full[key][toy.ROWS :] = False
    assert_close(gradients_of(toy.TRAIN, PARAMS, full), gradients_of(toy.TRAIN, PARAMS, BATCH))


def make(train=toy.TRAIN, model=toy.MODEL):
    trainer = Trainer(model, train, make_mesh(MeshConfig()))
    return trainer.init(), trainer.step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_keeps_the_dtypes_of_the_state(name):
    """Else it is compiled twice, and a checkpoint, whose dtypes are the first ones, is rounded."""
    model = replace(toy.MODEL, param_dtype="bfloat16")
    train = replace(toy.TRAIN, optimizer=OPTIMIZERS[name](), ema_decay=0.9)
    trainer = Trainer(model, train, make_mesh(MeshConfig()))
    state, _ = jax.eval_shape(trainer._step.whole, trainer.abstract, BATCH, trainer.horizon)
    assert [x.dtype for x in jax.tree.leaves(state)] == [
        x.dtype for x in jax.tree.leaves(trainer.abstract)
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_moving_average_follows_its_formula(dtype):
    """In float32: in bfloat16 the average would soon stand still."""
    model = replace(toy.MODEL, param_dtype=dtype)
    state, step = make(replace(toy.TRAIN, ema_decay=0.9), model)
    average = jax.tree.map(np.asarray, state.ema)
    for position in range(4):
        state, _ = step(state, toy.batch(position))
        decay = min(0.9, (1 + position) / (10 + position))
        average = jax.tree.map(
            lambda e, p, d=decay: d * e + (1 - d) * np.asarray(p, np.float32), average, state.params
        )
    assert_close(state.ema, average)
    jax.tree.map(
        lambda x, e: np.testing.assert_array_equal(x, e.astype(dtype), strict=True),
        state.eval_params,
        state.ema,
    )


@pytest.mark.usefixtures("own_programs")
def test_the_compiler_gets_the_options_that_it_takes(monkeypatch):
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    known = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_dot_merger_threshold_mb": 0}
    options = {"cpu": {**known, "xla_gpu_made_up": False}}
    monkeypatch.setattr(training_step, "COMPILER_OPTIONS", options)
    assert options_for(mesh) == known
    monkeypatch.setattr(training_step, "options_for", lambda mesh: options["cpu"])
    trainer = Trainer(toy.MODEL, toy.TRAIN, mesh)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_gpu_made_up"):
        trainer.lower(trainer.abstract, trainer.abstract_batch((8, 8, 8))).compile()
