"""Optimizers and schedules: every registered one, and the formulas of those in papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.config import override
from transformer_jax.optimizers.optimizers import OPTIMIZERS, make_optimizer
from transformer_jax.optimizers.schedules import SCHEDULES

PARAMS = {"w": jnp.ones((3, 5)), "b": jnp.zeros(4)}


@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_optimizer_moves_every_parameter(cls):
    rate = tj.RsqrtSchedule(learning_rate=3e-3, warmup_steps=4).build(16, 12)
    optimizer = make_optimizer(cls(), rate, clip_norm=1.0)
    grads = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.size), x.shape), PARAMS)
    updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(PARAMS), PARAMS)
    for path, leaf in jax.tree_util.tree_leaves_with_path(updates):
        assert np.isfinite(leaf).all() and (leaf != 0).any(), jax.tree_util.keystr(path)


def test_clipping_bounds_the_global_norm():
    optimizer = make_optimizer(OPTIMIZERS["sgd"](), lambda count: 1.0, clip_norm=0.5)
    grads = jax.tree.map(lambda x: jnp.full(x.shape, 7.0), PARAMS)
    updates, _ = optimizer.update(grads, optimizer.init(PARAMS), PARAMS)
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(updates)))
    np.testing.assert_allclose(norm, 0.5, rtol=1e-6)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_rises_to_its_peak_and_never_above(kind):
    rate = SCHEDULES[kind](learning_rate=0.1, warmup_steps=10).build(16, 100)
    rates = np.array([rate(step) for step in range(100)])
    np.testing.assert_allclose(rates[:10], 0.01 * np.arange(1, 11), rtol=1e-5)
    assert (np.diff(rates[9:]) <= 1e-8).all()


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_says_whether_it_depends_on_the_steps(kind):
    schedule = SCHEDULES[kind](learning_rate=0.1, warmup_steps=10)
    differs = schedule.build(16, 100)(50) != schedule.build(16, 200)(50)
    assert schedule.fixes_steps == differs


def test_the_papers_schedule():
    rate = tj.RsqrtSchedule(warmup_steps=4000).build(512, 100_000)
    for step in (1, 100, 4000, 50_000):  # section 5.3, equation 3
        want = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        np.testing.assert_allclose(rate(step - 1), want, rtol=1e-5)


@pytest.mark.parametrize("cls", [tj.CosineSchedule, tj.LinearSchedule])
def test_schedules_that_end_at_zero(cls):
    rate = cls(learning_rate=0.1, warmup_steps=10).build(512, 100)
    np.testing.assert_allclose([rate(4), rate(9)], [0.05, 0.1], rtol=1e-5)
    assert rate(54) < 0.06 and rate(99) < 1e-6


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"schedule": "cosine"}, "cosine needs learning_rate"),
        ({"schedule": "cosine(learning_rate=0)"}, "must be greater than 0"),
        ({"schedule.warmup_steps": "-1"}, "must be greater than or equal to 0"),
        ({"optimizer": "adam(weight_decay=0.1)"}, "adam has no option 'weight_decay'"),
        ({"optimizer": "sgd(b1=0.5)"}, "sgd has no option 'b1'; its options are momentum"),
        ({"optimizer": "adamw", "optimizer.b2": "1"}, "adamw(b2=1): must be less than 1"),
        ({"clip_norm": "inf"}, "clip_norm=inf: must be a finite number"),
    ],
)
def test_what_an_optimizer_or_schedule_cannot_be(flags, message):
    with pytest.raises(tj.UserError) as error:
        override(tj.TrainConfig(), flags)
    assert message in str(error.value)
