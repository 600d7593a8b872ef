"""A loss that is not finite changes nothing but the count, and too many of them end the run."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training import toy
from transformer_jax.config import Config
from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.optimizers.optimizers import Adafactor, Adam, Sgd, make_optimizer
from transformer_jax.optimizers.schedules import ConstantSchedule
from transformer_jax.parallel.mesh import MeshConfig, make_mesh, replicated
from transformer_jax.paths import as_path
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.training.loop import fit
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import Horizon, Objective, make_train_step
from transformer_jax.vocabulary import BOS_ID

BAD = BOS_ID  # an id that no source of ours holds


def poisoned(position):
    batch = toy.batch(position)
    batch["source"] = batch["source"].copy()
    batch["source"][0, 0] = BAD
    return batch


def quadratic(model, params, batch, **options):
    """Instead of a model: a loss that is `nan` where the batch is poisoned."""
    tokens = batch["target_mask"].sum().astype(jnp.float32)
    loss = ((params["w"] - 1.0) ** 2).sum() * tokens
    loss = loss * jnp.where(batch["source"][0, 0] == BAD, jnp.nan, 1.0)
    return loss, loss, tokens


@pytest.mark.parametrize("kind", [Adam, Adafactor, Sgd])
def test_a_bad_step_changes_no_parameter_no_optimizer_and_no_average(monkeypatch, kind):
    monkeypatch.setattr(api, "loss", quadratic)
    train = replace(
        toy.TRAIN,
        ema_decay=0.9,
        accumulate=2,
        optimizer=kind(),
        schedule=ConstantSchedule(learning_rate=0.1),
    )
    optimizer = make_optimizer(train.optimizer, train.schedule.build(16, 100))
    mesh = make_mesh(MeshConfig())
    params = {"w": jnp.linspace(-1.0, 2.0, 4)}
    # No two leaves may share a buffer: the step is given all of them.
    step_0, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))
    state = TrainState(
        step=step_0,
        params=params,
        opt_state=optimizer.init(params),
        ema=jax.tree.map(jnp.copy, params),
        skipped=skipped,
        skipped_in_a_row=in_a_row,
    )
    shardings = jax.tree.map(lambda x: replicated(mesh), state)
    objective = Objective(toy.MODEL, train, frozenset({"w"}))
    halves = make_train_step(objective, lambda _: optimizer, mesh, shardings)

    def step(state, batch):
        gradient = halves.gradient(state.params, state.step, batch)
        return halves.update(state, gradient, Horizon(100.0, 4.0))

    state, good = step(jax.device_put(state, shardings), toy.batch(0))
    before = jax.tree.map(np.array, state)
    state, bad = step(state, poisoned(1))
    for old, new in (
        (before.params, state.params),
        (before.opt_state, state.opt_state),
        (before.ema, state.ema),
    ):
        jax.tree.map(np.testing.assert_array_equal, old, new)
    assert good["finite"] and not bad["finite"]
    assert (int(state.step), int(state.skipped), int(state.skipped_in_a_row)) == (2, 1, 1)

    state, _ = step(state, toy.batch(2))
    assert (int(state.step), int(state.skipped), int(state.skipped_in_a_row)) == (3, 1, 0)
    assert not np.array_equal(before.params["w"], state.params["w"])


@pytest.fixture
def real_loss_with_bad_batches(monkeypatch):
    loss = api.loss

    def poisonable(model, params, batch, **kwargs):
        bad = batch["source"][0, 0] == BAD
        clean = batch | {"source": jnp.where(batch["source"] == BAD, 4, batch["source"])}
        loss_sum, nll_sum, tokens = loss(model, params, clean, **kwargs)
        return jnp.where(bad, jnp.inf, loss_sum), nll_sum, tokens

    monkeypatch.setattr(api, "loss", poisonable)


def run(folder, bad, **changes):
    def batches(position):
        while True:
            yield poisoned(position) if position in bad else toy.batch(position)
            position += 1

    try:
        return fit(toy.MODEL, replace(toy.TRAIN, **changes), batches, workdir=folder)
    except UserError as error:
        return error


def test_skipped_steps_are_counted_and_too_many_in_a_row_stop(
    tmp_path, real_loss_with_bad_batches, logged
):
    # Positions 4, 5 are two in a row, 8 to 10 are three.
    bad = {4, 5, 8, 9, 10}
    error = run(tmp_path, bad, max_bad_steps=3)
    assert isinstance(error, UserError)
    assert "steps 9 to 11 (data positions 8 to 10)" in str(error) and "\n" not in str(error)
    assert any("2 of the last 3 steps skipped" in line for line in logged())
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["4", "8"]
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert [
        r["skipped_steps"] for r in read_metrics(as_path(tmp_path)) if "skipped_steps" in r
    ] == [0, 2, 3]
    json.loads(text.splitlines()[-1])

    again = run(tmp_path, bad, max_bad_steps=3)
    assert str(again) == str(error), "the same command comes to the same end"

    state = run(tmp_path, bad, max_bad_steps=4)
    assert (int(state.step), int(state.skipped)) == (12, 5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))


def test_the_limit_must_be_at_least_one():
    with pytest.raises(UserError, match="train.max_bad_steps=0: must be greater than 0"):
        fit(toy.MODEL, replace(Config().train, max_bad_steps=0), toy.batches_from)
