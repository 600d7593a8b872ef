"""A loss that is not finite changes nothing but the count, and too many of them end the run."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training import toy
from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.optimizers.optimizers import Adafactor, Adam, Sgd
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.paths import as_path
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.training.loop import fit
from transformer_jax.training.trainer import Trainer
from transformer_jax.vocabulary import BOS_ID, UNK_ID

# Ids that no source of ours holds.
INFINITE, NOT_A_NUMBER = BOS_ID, UNK_ID


def poisoned(position):
    batch = toy.batch(position)
    batch["source"][0, 0] = INFINITE if position % 2 else NOT_A_NUMBER
    return batch


@pytest.fixture
def poisonable_loss(own_programs, monkeypatch):
    """Infinite with a finite gradient, or no number, which its gradient is neither."""
    loss = api.loss

    def poisonable(model, params, batch, **kwargs):
        first = batch["source"][0, 0]
        word = jnp.where((first == INFINITE) | (first == NOT_A_NUMBER), 4, first)
        clean = batch | {"source": jnp.asarray(batch["source"]).at[0, 0].set(word)}
        loss_sum, nll_sum, tokens = loss(model, params, clean, **kwargs)
        loss_sum += jnp.where(first == INFINITE, jnp.inf, 0.0)
        return loss_sum * jnp.where(first == NOT_A_NUMBER, jnp.nan, 1.0), nll_sum, tokens

    monkeypatch.setattr(api, "loss", poisonable)


@pytest.mark.parametrize("kind", [Adam, Adafactor, Sgd])
def test_a_bad_step_changes_no_parameter_no_optimizer_and_no_average(poisonable_loss, kind):
    train = replace(toy.TRAIN, ema_decay=0.9, accumulate=2, optimizer=kind())
    trainer = Trainer(toy.MODEL, train, make_mesh(MeshConfig()))
    state, good = trainer.step(trainer.init(), toy.batch(0))
    assert good["finite"]
    before = jax.tree.map(np.array, state)
    for number in (1, 2):
        state, bad = trainer.step(state, poisoned(number))
        for kept in ("params", "opt_state", "ema"):
            old, new = getattr(before, kept), getattr(state, kept)
            jax.tree.map(np.testing.assert_array_equal, old, new)
        assert not bad["finite"]
        counts = int(state.step), int(state.skipped), int(state.skipped_in_a_row)
        assert counts == (1 + number, number, number)

    state, _ = trainer.step(state, toy.batch(3))
    assert (int(state.step), int(state.skipped), int(state.skipped_in_a_row)) == (4, 2, 0)
    same = jax.tree.map(np.array_equal, before.params, state.params)
    assert not jax.tree.all(same)


def run(folder, bad, **changes):
    def batches(position):
        while True:
            yield poisoned(position) if position in bad else toy.batch(position)
            position += 1

    try:
        return fit(toy.MODEL, replace(toy.TRAIN, **changes), batches, workdir=folder)
    except UserError as error:
        return error


def test_skipped_steps_are_counted_and_too_many_in_a_row_stop(tmp_path, poisonable_loss, logged):
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
