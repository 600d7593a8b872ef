"""What is frozen keeps its bits and costs no state; adapters alone are trained by default."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from tests.quick import quick
from tests.training import toy
from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.models.lora import Lora
from transformer_jax.models.paths import by_path, trained_paths
from transformer_jax.optimizers.optimizers import OPTIMIZERS
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.training.loop import fit
from transformer_jax.training.step import Objective, mean_of, sum_gradients
from transformer_jax.training.trainer import Trainer

LORA = replace(toy.MODEL, adapter=Lora(rank=2, targets=("*/query/kernel", "*/up/kernel")))
DECODER = replace(toy.TRAIN, frozen=("encoder/*", "*/table"), ema_decay=0.9)
ADAPTERS_AND_NORMS = replace(toy.TRAIN, frozen=("*/kernel", "*/table", "*[!m]/bias"))

BATCH = toy.batch(0)
CASES = {
    "decoder": (toy.MODEL, DECODER, lambda path: path.startswith("decoder/")),
    "adapters": (LORA, toy.TRAIN, lambda path: path.startswith("lora/")),
    "adapters and norms": (
        LORA,
        ADAPTERS_AND_NORMS,
        lambda path: path.startswith("lora/") or "norm/" in path,
    ),
    "all": (LORA, replace(toy.TRAIN, frozen=()), lambda path: True),
}


@pytest.fixture(params=list(quick(CASES, "decoder", "adapters")))
def case(request):
    return CASES[request.param]


def test_only_what_is_trained_changes(case):
    model, train, is_trained = case
    before = by_path(jax.device_get(Trainer(model, train, make_mesh(MeshConfig())).init().params))
    after = by_path(jax.device_get(fit(model, train, toy.batches_from).params))
    assert before.keys() == after.keys()
    changed = {path for path in before if (before[path] != after[path]).any()}
    assert changed == {path for path in before if is_trained(path)}


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_the_optimizer_keeps_nothing_for_frozen_parameters(optimizer):
    """Its state is what the optimizer would keep for a model of the trained parameters."""
    train = replace(DECODER, optimizer=OPTIMIZERS[optimizer]())
    abstract = Trainer(toy.MODEL, train, make_mesh(MeshConfig())).abstract
    trained = {p: x for p, x in by_path(abstract.params).items() if p.startswith("decoder/")}
    rate = train.schedule.build(toy.MODEL.d_model, train.steps)
    alone = jax.eval_shape(train.optimizer.build(rate).init, trained)
    shapes = [sorted(x.shape for x in jax.tree.leaves(s)) for s in (abstract.opt_state, alone)]
    assert shapes[0] == shapes[1]
    assert set(by_path(abstract.ema)) == set(trained)


def test_the_gradient_and_its_norm_are_those_of_the_trained_part(case):
    model, train, is_trained = case
    params = api.init(model, jax.random.key(1))
    everything = replace(train, frozen=())
    objectives = (
        Objective(model, each, trained_paths(each.frozen, params)) for each in (train, everything)
    )
    got, want = (
        jax.jit(lambda params, each=each: mean_of(sum_gradients(each, params, BATCH, rng=None))[0])(
            params
        )
        for each in objectives
    )
    want = {path: leaf for path, leaf in by_path(want).items() if is_trained(path)}
    assert by_path(got).keys() == want.keys()
    for path, leaf in by_path(got).items():
        np.testing.assert_allclose(leaf, want[path], atol=1e-5, err_msg=path)
    np.testing.assert_allclose(optax.global_norm(got), optax.global_norm(want), rtol=1e-5)


@pytest.mark.parametrize("name", quick(["decoder", "adapters"], "adapters"))
def test_a_run_that_was_stopped_continues_exactly(name, tmp_path):
    model, train, _ = CASES[name]
    train = replace(train, ema_decay=0.9)
    whole = fit(model, train, toy.batches_from, workdir=tmp_path / "whole")
    fit(model, replace(train, steps=8), toy.batches_from, workdir=tmp_path / "parts")
    again = fit(model, train, toy.batches_from, workdir=tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, whole, again)
    # What evaluation uses is complete.
    assert by_path(again.eval_params).keys() == by_path(again.params).keys()


def test_given_parameters_are_where_training_and_its_average_begin():
    train = replace(toy.TRAIN, ema_decay=0.9, seed=3)
    given = api.init(toy.MODEL, jax.random.key(8))
    want = jax.device_get(given)
    trainer = Trainer(LORA, replace(train, frozen=()), make_mesh(MeshConfig()))
    state = trainer.init(given)
    for params in (state.params, state.ema):
        jax.tree.map(np.testing.assert_array_equal, want, {key: params[key] for key in want})
    assert set(state.params) == {*want, "lora"}


def test_what_cannot_be_frozen_is_refused():
    params = api.abstract_params(toy.MODEL)

    def refusal(*frozen):
        with pytest.raises(UserError) as refused:
            trained_paths(frozen, params)
        return str(refused.value)

    assert refusal("encodr/*").startswith(
        "train.frozen: 'encodr/*' matches no parameter; the nearest are encoder/"
    )
    assert refusal("*") == "train.frozen=*: nothing is left to train"
