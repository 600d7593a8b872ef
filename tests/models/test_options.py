"""Options of the model around its layers: each against the parameters it stands for."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.models.test_transformer import (
    BATCH,
    SMALLER,
    SOURCE,
    SOURCE_MASK,
    TARGET,
    TARGET_MASK,
    logits,
)
from tests.quick import quick
from transformer_jax.layers.norms import normalize
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.models import api
from transformer_jax.models.transformer import UNUSED
from transformer_jax.translation.model import Model
from transformer_jax.translation.model_calls import (
    Decoding,
    Pairs,
    Sources,
    decode_batch,
    score_batch,
)


def random_params(config, seed=0):
    """Nothing is left at zero or one."""
    rng = np.random.default_rng(seed)
    shapes = api.abstract_params(config)
    return jax.tree.map(lambda x: jnp.float32(0.3 * rng.standard_normal(x.shape)), shapes)


def close(got, want):
    np.testing.assert_allclose(got, want, atol=2e-5)


def halved(params, *names):
    return params | {name: jax.tree.map(lambda x: x / 2, params[name]) for name in names}


def starting_with(params, row_D):
    table_VD = params["target_embedding"]["table"].at[1].set(row_D)
    return params | {"target_embedding": {"table": table_VD}}


@pytest.mark.parametrize(
    ("options", "others", "of_others"),
    [
        (  # of the default, which is 4, the square root of d_model
            {"embedding_scale": 2.0},
            {"embedding_scale": None},
            lambda p: halved(p, "source_embedding", "target_embedding"),
        ),
        ({"logit_scale": 0.5}, {"logit_scale": 1.0}, lambda p: halved(p, "projection")),
        (
            {"start_id": 9},
            {"start_id": 1},
            lambda p: starting_with(p, p["target_embedding"]["table"][9]),
        ),
        (
            {"tie_embeddings": "inputs"},
            {"tie_embeddings": "none"},
            lambda p: p | {"source_embedding": p["target_embedding"]},
        ),
    ],
)
def test_an_option_is_as_other_parameters(options, others, of_others):
    config = replace(SMALLER, **{"tie_embeddings": "none"} | options)
    params = random_params(config)
    close(logits(config, params), logits(replace(config, **others), of_others(params)))


def test_output_bias_is_added_to_the_logits():
    config = replace(SMALLER, output_bias=True)
    params = random_params(config)
    without = {name: tree for name, tree in params.items() if name != "output_bias"}
    want = logits(SMALLER, without) + np.asarray(params["output_bias"]["bias"])
    close(logits(config, params), want)


def test_unused_ids_are_never_predicted():
    config = replace(SMALLER, unused_ids=(1, 7))
    params = random_params(SMALLER)
    want = logits(SMALLER, params).at[..., [1, 7]].set(-np.inf)
    got = jax.nn.log_softmax(logits(config, params))
    others = [i for i in range(20) if i not in (1, 7)]
    close(got[..., others], jax.nn.log_softmax(want)[..., others])
    assert (np.exp(got)[..., [1, 7]] < 1e-40).all()
    assert UNUSED > -1e3  # label smoothing takes the mean of all logits


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_has_the_bias_and_the_unused_ids(smoothing):
    config = replace(SMALLER, output_bias=True, unused_ids=(1,), logit_scale=0.5)
    params = random_params(config)

    def expected(params):
        target_in = api.shift_right(TARGET)
        raw = api.apply(config, params, SOURCE, SOURCE_MASK, target_in, TARGET_MASK)
        log_probs = jax.nn.log_softmax(raw)
        wanted = (1 - smoothing) * jax.nn.one_hot(TARGET, 20) + smoothing / 20
        return -((wanted * log_probs).sum(-1) * TARGET_MASK).sum()

    def loss(params):
        return api.loss(config, params, BATCH, label_smoothing=smoothing)[0]

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    want, want_grads = jax.jit(jax.value_and_grad(expected))(params)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), grads, want_grads)


@pytest.mark.parametrize("tied", ["none", "all"])
def test_a_start_of_zeros(tied):
    """As a row of zeros, which can be read where another matrix projects to logits."""
    zeros, row = (replace(SMALLER, start_id=start, tie_embeddings=tied) for start in (None, 1))
    params = random_params(zeros)
    got, want = logits(zeros, params), logits(row, starting_with(params, 0.0))
    others = [i for i in range(20) if i != 1 or tied == "none"]
    close(got[..., others], want[..., others])
    if tied == "all":  # the row still says how likely BOS is
        assert np.abs(got[..., 1] - want[..., 1]).max() > 0.1


def test_a_start_of_zeros_is_not_trained():
    config = replace(SMALLER, start_id=None, tie_embeddings="none")
    params = random_params(config)
    grads = jax.grad(lambda params: api.loss(config, params, BATCH)[0])(params)
    grad_VD = np.asarray(grads["target_embedding"]["table"])
    assert np.abs(grad_VD[1]).max() == 0.0 < np.abs(grad_VD[4:]).max()


STARTS = list(product(("float", "int8"), (tj.Greedy(), tj.Beam(beam_size=3), tj.Sample())))


@pytest.mark.parametrize("start", quick(STARTS, STARTS[1], STARTS[2], STARTS[3]))
def test_every_search_and_the_scores_start_with_zeros(start):
    weights, method = start
    zeros, row = (replace(SMALLER, start_id=n, tie_embeddings="none") for n in (None, 1))
    params = random_params(zeros)
    plain = starting_with(params, 0.0)

    def outputs(config, params):
        model = Model((config,))
        held = model.held(params, weights, None)
        limits_B, numbers_B = np.full(3, 7, np.int32), np.arange(3, dtype=np.int32)
        found = decode_batch(
            held,
            Sources(SOURCE, SOURCE_MASK, limits_B, numbers_B),
            model=model,
            decoding=Decoding(method, 7),
        )
        pairs = Pairs(SOURCE, SOURCE_MASK, TARGET, TARGET_MASK)
        return found.tokens, found.log_probs, score_batch(held, pairs, model=model)

    got = outputs(zeros, params)
    for ours, want in zip(got, outputs(row, plain), strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-5)
    assert not np.allclose(got[2], outputs(row, params)[2], rtol=1e-3)


def test_embedding_norm_is_what_the_first_layer_reads():
    config = replace(SMALLER, embedding_norm=True, norm_placement="post")
    params = random_params(config)
    # A post-norm block whose sublayers give zero is two norms; with scale 1, the second does
    # nothing more, so the encoder's output is the norm of the norm of the embeddings.
    block = jax.tree.map(jnp.zeros_like, params["encoder"]["blocks_0"])
    for name in ("mixer_residual", "feed_forward_residual"):
        block[name]["norm"]["scale"] = jnp.ones(16)
    params["encoder"]["blocks_0"] = block
    from transformer_jax.models.transformer import Transformer

    memory = Transformer(config).apply({"params": params}, SOURCE, SOURCE_MASK, method="memory")
    without = replace(config, embedding_norm=False)
    plain = jax.tree.map(jnp.copy, params)
    del plain["encoder"]["first_norm"], plain["decoder"]["first_norm"]
    bare = Transformer(without).apply(
        {"params": plain},
        plain["target_embedding"]["table"][SOURCE],
        jnp.arange(6),
        method=lambda m, x, at: m.encoder.position.embed(x * 4.0, at),
    )
    first = params["encoder"]["first_norm"]
    want = normalize(bare, epsilon=1e-6) * first["scale"] + first["bias"]
    close(memory, normalize(want, epsilon=1e-6))


def test_attention_without_biases_and_with_another_scale():
    mixer, cross = Full(use_bias=False, score_scale=1.0), FullCross(use_bias=False, score_scale=1.0)
    stack = tj.StackConfig(num_layers=1, mixers=(mixer,))
    config = replace(SMALLER, encoder=stack, decoder=stack, cross=cross)
    params = random_params(config)
    plain = jax.tree.map(jnp.copy, params)
    for block, names in (("encoder", ["mixer"]), ("decoder", ["mixer", "cross"])):
        for name in names:
            heads = plain[block]["blocks_0"][name]["heads"]
            assert all(set(part) == {"kernel"} for part in heads.values())
            heads["query"]["kernel"] *= 8**0.5
            for part in ("query", "value", "out"):
                heads[part]["bias"] = jnp.zeros(16)
    close(logits(config, params), logits(SMALLER, plain))
