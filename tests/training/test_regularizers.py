"""Regularizers equal their papers' formulas in float64, however the batch is cut."""

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.devices import with_eight_devices
from tests.training import toy
from transformer_jax.config import TrainConfig, override
from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.ops import losses
from transformer_jax.regularizers import NO_REGULARIZER, Cutoff, RDrop, Regularizer
from transformer_jax.training.step import gradients

# One more piece, which no batch has: its embedding is zero, so it stands for a word that is cut.
CUT = toy.VOCAB
MODEL = replace(toy.MODEL, source_vocab_size=CUT + 1, target_vocab_size=CUT + 1, dropout_rate=0.3)
SMOOTHING = 0.1
KEY = jax.random.key(5)
BATCH = toy.batch(0)
REGULARIZERS = [RDrop(alpha=1.7), Cutoff(rate=0.3, cross_entropy=0.6, divergence=2.3)]


@pytest.fixture(scope="module")
def params():
    made = api.init(MODEL, jax.random.key(0))
    table = made["target_embedding"]["table"]
    # Five times as large: predictions far from uniform.
    made["target_embedding"]["table"] = (5 * table).at[CUT].set(0.0)
    return made


def recorded(regularizer, calls):
    """The regularizer, which notes the input positions that it keeps."""
    cls = type(regularizer)

    class Recorded(cls):
        def kept(self, key, rows, length):
            made = super().kept(key, rows, length)
            calls.append(None if made is None else np.asarray(made))
            return made

    return Recorded(**asdict(regularizer))


def logits_of_both(params, batch, kept, key):
    """Float64 logits [B, 2, T, V] of the two passes, from a batch with two rows for each."""
    target_in = np.asarray(api.shift_right(batch["target"]))
    ids = {"source": batch["source"], "target_in": target_in}
    for name, mask in zip(ids, kept, strict=True):
        ids[name] = np.repeat(ids[name], 2, axis=0)
        if mask is not None:
            ids[name] = np.where(mask.reshape(ids[name].shape), ids[name], CUT)
    masks = [np.repeat(batch[name], 2, axis=0) for name in ("source_mask", "target_mask")]
    logits = api.apply(MODEL, params, ids["source"], masks[0], ids["target_in"], masks[1], rng=key)
    return np.asarray(logits, np.float64).reshape(-1, 2, *logits.shape[1:])


def formula(regularizer, logits, batch):
    """(loss, negative log-likelihood) of each token, in float64, as the papers write them."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p, q = np.moveaxis(shifted / shifted.sum(axis=-1, keepdims=True), 1, 0)
    hot = np.eye(logits.shape[-1])[batch["target"]]
    smooth = (1 - SMOOTHING) * hot + SMOOTHING / logits.shape[-1]
    ce = [-(smooth * np.log(each)).sum(-1) for each in (p, q)]

    def kl(a, b):
        return (a * np.log(a / b)).sum(-1)

    if isinstance(regularizer, RDrop):
        loss = (ce[0] + ce[1]) / 2 + regularizer.alpha / 2 * (kl(p, q) + kl(q, p))
    else:
        m = (p + q) / 2
        js = (kl(p, m) + kl(q, m)) / 2
        loss = ce[0] + regularizer.cross_entropy * ce[1] + regularizer.divergence * js
    return loss, -(hot * np.log(p)).sum(-1)


@pytest.mark.parametrize("chunk_tokens", [3, 1000])
@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_equals_the_formula_in_float64(params, regularizer, chunk_tokens, monkeypatch):
    width = MODEL.target_vocab_size
    monkeypatch.setitem(losses._FORMS, "cpu", losses._Form(chunk_tokens * width))
    kept = []
    loss_sum, nll_sum, tokens = api.loss(
        *(MODEL, params, BATCH),
        label_smoothing=SMOOTHING,
        rng=KEY,
        regularizer=recorded(regularizer, kept),
    )
    logits = logits_of_both(params, BATCH, kept, KEY)
    loss, nll = formula(regularizer, logits, BATCH)
    mask = BATCH["target_mask"]
    assert tokens == mask.sum()
    np.testing.assert_allclose(loss_sum, loss[mask].sum(), rtol=1e-5)
    np.testing.assert_allclose(nll_sum, nll[mask].sum(), rtol=1e-5)
    assert np.abs(logits[:, 0] - logits[:, 1]).mean() > 0.1  # the passes differ


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_the_gradient_is_that_of_the_mean_over_all_parts(params, regularizer, accumulate):
    train = replace(toy.TRAIN, accumulate=accumulate, regularizer=regularizer)
    grads, sums = jax.jit(partial(gradients, MODEL, train))(params, BATCH, KEY)

    def mean(params):
        """From the logits of both passes, with automatic differentiation of all of it."""
        total = 0.0
        for part in range(accumulate):
            rows = {name: x[part::accumulate] for name, x in BATCH.items()}
            key = KEY if accumulate == 1 else jax.random.fold_in(KEY, part)
            total += api.loss(
                *(MODEL, params, rows),
                label_smoothing=train.label_smoothing,
                rng=key,
                regularizer=regularizer,
            )[0]
        return total / BATCH["target_mask"].sum()

    want = jax.jit(jax.grad(mean))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, want)
    assert sums["tokens"] == BATCH["target_mask"].sum()


@dataclass(frozen=True)
class Twice(Regularizer):
    """The mean cross-entropy of two passes, and nothing else."""

    passes: ClassVar[int] = 2

    def token_loss(self, losses_NP, log_probs_NPV):
        return losses_NP.mean(axis=1)


@dataclass(frozen=True)
class Once(Regularizer):
    """One pass without the first word of each side, whose cross-entropy counts three times."""

    passes: ClassVar[int] = 1

    def kept(self, key, rows, length):
        return jnp.broadcast_to(jnp.arange(length) > 0, (rows, 1, length))

    def token_loss(self, losses_NP, log_probs_NPV):
        return 3.0 * losses_NP[:, 0]


def test_a_regularizer_of_one_pass_has_its_own_loss_and_input(params):
    model = replace(MODEL, dropout_rate=0.0)
    tripled, *_ = api.loss(model, params, BATCH, regularizer=Once())
    plain, *_ = api.loss(model, params, BATCH)
    np.testing.assert_allclose(tripled, 3.0 * plain, rtol=1e-5)
    cut, *_ = api.loss(model, params, BATCH, rng=KEY, regularizer=Once())
    assert abs(cut / 3.0 - plain) > 1e-3 * abs(plain)


@pytest.mark.parametrize("regularizer", [RDrop(), Cutoff(cross_entropy=0.0), Twice()])
@pytest.mark.parametrize("rng", [None, KEY])
def test_equal_passes_leave_the_cross_entropy(params, regularizer, rng):
    """Without a key, or where nothing is dropped, nothing is added."""
    model = replace(MODEL, dropout_rate=0.3 if rng is None else 0.0)
    if rng is not None and isinstance(regularizer, Cutoff):
        regularizer = replace(regularizer, rate=0.0)
    train = replace(toy.TRAIN, regularizer=regularizer)
    got = gradients(model, train, params, BATCH, rng)
    want = gradients(model, toy.TRAIN, params, BATCH, rng)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)


def test_cutoff_cuts_its_share_of_the_second_pass_alone():
    cutoff = Cutoff(rate=0.2)
    kept = np.asarray(cutoff.kept(KEY, 200, 50))
    assert kept.shape == (200, 2, 50) and kept[:, 0].all()
    assert abs(1 - kept[:, 1].mean() - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 10_000)


def test_source_and_target_are_cut_independently(params):
    kept = []
    api.loss(MODEL, params, BATCH, rng=KEY, regularizer=recorded(Cutoff(rate=0.5), kept))
    assert len(kept) == 2 and not np.array_equal(*kept)


def test_filling_rows_change_nothing_in_a_loss_without_dropout(params):
    model = replace(MODEL, dropout_rate=0.0)
    full = jax.tree.map(lambda x: np.concatenate([x, np.ones_like(x)]), BATCH)
    for name in ("source_mask", "target_mask"):
        full[name][toy.ROWS :] = False
    for regularizer in (RDrop(), Cutoff(rate=0.0)):
        train = replace(toy.TRAIN, regularizer=regularizer)
        got, want = (gradients(model, train, params, batch, KEY) for batch in (full, BATCH))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)


def test_a_flag_chooses_a_regularizer():
    train = override(TrainConfig(), {"regularizer": "rdrop(alpha=4)"})
    assert train.regularizer == RDrop(alpha=4.0)
    assert override(train, {"regularizer": "none"}).regularizer == NO_REGULARIZER
    assert override(TrainConfig(), {"regularizer": "cutoff"}).regularizer == Cutoff()
    for wrong in ("rdrop(alpha=-1)", "cutoff(rate=1)", "rdop"):
        with pytest.raises(UserError, match="regularizer"):
            override(TrainConfig(), {"regularizer": wrong})


# Three steps with everything that drops, on a mesh of 2 x 2 x 2 and on one device.
MESHES = """
import json
from dataclasses import replace
import jax, jax.numpy as jnp
from tests.training import toy
from transformer_jax.parallel.mesh import MeshConfig, batch_sharding, make_mesh
from transformer_jax.regularizers import Cutoff, RDrop
from transformer_jax.training.trainer import Trainer

stacks = {side: replace(getattr(toy.MODEL, side), word_dropout=0.1)
          for side in ("encoder", "decoder")}
model = replace(toy.MODEL, source_vocab_size=16, target_vocab_size=16, num_heads=4, **stacks)
out = []
for regularizer in (RDrop(), Cutoff(rate=0.3)):
    train = replace(toy.TRAIN, accumulate=2, regularizer=regularizer)
    for mesh in (make_mesh(MeshConfig(data=1), jax.devices()[:1]),
                 make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        trainer = Trainer(model, train, mesh)
        state, seen = trainer.init(), []
        for position in range(3):
            batch = jax.device_put(toy.batch(position), batch_sharding(mesh))
            state, metrics = trainer.step(state, batch)
            seen += [float(metrics[name]) for name in ("loss_sum", "nll_sum", "grad_norm")]
        out.append([seen, float(sum(jnp.abs(x).sum() for x in jax.tree.leaves(state.params)))])
print(json.dumps(out))
"""


def test_eight_devices_train_as_one():
    rdrop, rdrop_split, cutoff, cutoff_split = with_eight_devices("-c", MESHES)
    assert json.dumps(rdrop) != json.dumps(cutoff)
    for one, split in ((rdrop, rdrop_split), (cutoff, cutoff_split)):
        np.testing.assert_allclose(split[0], one[0], rtol=1e-5)
        np.testing.assert_allclose(split[1], one[1], rtol=1e-6)


def test_a_padded_or_unused_piece_gives_no_nan(params):
    model = replace(MODEL, unused_ids=(CUT,), dropout_rate=0.5)
    hot = jax.tree.map(lambda x: 50 * x, params)  # probabilities that round to 0 and 1
    for regularizer in REGULARIZERS:
        train = replace(toy.TRAIN, regularizer=regularizer)
        grads, sums = gradients(model, train, hot, BATCH, KEY)
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((grads, sums)))
