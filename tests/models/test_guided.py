"""A head of the last cross-attention that learns word alignments."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from transformer_jax.errors import UserError
from transformer_jax.mixers.full_attention import FullCross
from transformer_jax.models import api, inside
from transformer_jax.models.config import ModelConfig, StackConfig, check_model_config
from transformer_jax.models.paths import by_path

STACK, HEAD = StackConfig(num_layers=2), 1
MODEL = ModelConfig(
    30, 30, 16, 24, 4, encoder=STACK, decoder=STACK, max_length=16, tie_embeddings="none"
)
GUIDED = replace(MODEL, cross=FullCross(alignment_head=HEAD))
SIZES = {"source": (3, 6), "target": (3, 5)}


@pytest.fixture(scope="module")
def params():
    # Larger than they start, so that the weights differ.
    return jax.tree.map(lambda x: 2 * x, api.init(GUIDED, jax.random.key(0)))


@pytest.fixture(scope="module")
def batch():
    """Three pairs of different lengths, with links between real pieces."""
    draw = np.random.default_rng(0)
    made = {side: draw.integers(3, 30, size).astype(np.int32) for side, size in SIZES.items()}
    made |= {
        f"{side}_mask": np.arange(made[side].shape[1]) < np.array(lengths)[:, None]
        for side, lengths in (("source", (6, 4, 2)), ("target", (5, 5, 3)))
    }
    links = draw.random((3, 5, 6)) < 0.4
    links &= made["target_mask"][:, :, None] & made["source_mask"][:, None]
    assert (links.any(axis=2) != made["target_mask"]).any(), "a piece without a link"
    return made | {"alignment": links}


def arrays(batch):
    names = "source", "source_mask", "target", "target_mask"
    source, source_mask, target, target_mask = (batch[name] for name in names)
    return source, source_mask, api.shift_right(target), target_mask


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_loss_has_the_cross_entropy_of_the_heads_weights(batch, groups):
    """Also of a head that shares its keys."""
    model = replace(MODEL, cross=FullCross(alignment_head=3, num_kv_heads=groups))
    params = api.init(model, jax.random.key(1))
    plain, guided = (api.loss(model, params, batch, alignment_weight=w) for w in (None, 0.5))
    assert guided[1:] == plain[1:]  # the negative log-likelihood and the tokens
    weights = inside.attention(model, params, *arrays(batch))[1]["cross.1"][:, 3]
    links = batch["alignment"]
    share = links / np.maximum(links.sum(axis=-1, keepdims=True), 1)
    want = -(share * np.log(np.where(links, weights, 1.0))).sum()
    np.testing.assert_allclose(guided[0] - plain[0], 0.5 * want, rtol=1e-4)


def test_only_the_head_and_what_is_before_it_learn_from_alignments(params, batch):
    def alignment_alone(params):
        guided, plain = (api.loss(GUIDED, params, batch, alignment_weight=w) for w in (1.0, None))
        return guided[0] - plain[0]

    # What the two losses share cancels out but for rounding.
    gradient = by_path(jax.jit(jax.grad(alignment_alone))(params))
    sizes = {path: float(np.abs(leaf).max()) for path, leaf in gradient.items()}
    last = "decoder/blocks_1/cross/heads"
    after = [f"{last}/value", f"{last}/out", "decoder/last_norm", "projection"]
    after += ["decoder/blocks_1/feed_forward", "decoder/blocks_1/feed_forward_residual"]
    for path, size in sizes.items():
        is_after = any(path.startswith(f"{each}/") for each in after)
        # A bias of the keys moves all scores of a query alike.
        assert (size < 1e-5) == (is_after or path == f"{last}/key/bias"), (path, size)
    for name in ("query", "key"):
        of_heads = np.asarray(gradient[f"{last}/{name}/kernel"]).reshape(16, 4, 4)
        found = np.abs(of_heads).max(axis=(0, 2)) > 1e-5
        assert found.tolist() == [head == HEAD for head in range(4)]


@pytest.mark.parametrize("remat", [False, True])
def test_padding_changes_nothing(params, batch, remat):
    model = replace(GUIDED, remat=remat)

    def padded(array, name):
        extra = {"source": (2, 3), "target": (2, 4)}
        if name == "alignment":
            return np.pad(array, ((0, 2), (0, 4), (0, 3)))
        rows, length = extra[name.removesuffix("_mask")]
        return np.pad(array, ((0, rows), (0, length)))

    def loss(params, batch):
        return api.loss(model, params, batch, alignment_weight=0.5)[0]

    more = {name: padded(array, name) for name, array in batch.items()}
    (value, gradient), (other, others) = (
        jax.jit(jax.value_and_grad(loss))(params, each) for each in (batch, more)
    )
    np.testing.assert_allclose(value, other, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), gradient, others)


def test_alignments_are_read_from_the_head(params, batch):
    weights = inside.attention(GUIDED, params, *arrays(batch))[1]["cross.1"]
    np.testing.assert_array_equal(
        inside.alignment(GUIDED, params, *arrays(batch)), weights[:, HEAD]
    )


def test_a_head_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"alignment_head=4.*the heads are 0 to 3"):
        check_model_config(replace(MODEL, cross=FullCross(alignment_head=4)))
    batch = {"source": 0, "source_mask": 0}
    batch |= {"target": np.zeros((1, 1), int), "target_mask": np.ones((1, 1), bool)}
    for model, words in (
        (MODEL, r"model.cross='full\(alignment_head=0\)'"),
        (replace(GUIDED, scan_layers=True), "and model.scan_layers: a loop over the layers"),
    ):
        with pytest.raises(UserError, match=words):
            api.loss(model, {}, batch, alignment_weight=0.1)
