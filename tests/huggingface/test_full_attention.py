"""Full attention under each position scheme against the Hugging Face library's PyTorch models.

Their random weights are copied into our parameters; outputs in float32.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import need
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.positions.alibi import Alibi
from transformer_jax.positions.learned import Learned
from transformer_jax.positions.none import NoPosition
from transformer_jax.positions.rope import Rope
from transformer_jax.positions.sinusoidal import sinusoids
from transformer_jax.positions.t5 import T5, relative_buckets

torch = need("torch")
transformers = need("transformers")

D, HEADS, K, LENGTH, MEMORY = 24, 6, 4, 9, 7
MASK = np.arange(LENGTH) < np.array([LENGTH, 5])[:, None]
ATOL = 1e-5


def context(*, causal):
    return MixerContext(D, HEADS, K, LENGTH, causal)


def build(config, position, *, causal):
    return config.build(context(causal=causal), position.build(context(causal=causal)))


def inputs(length=LENGTH, seed=0):
    return np.random.default_rng(seed).normal(size=(2, length, D)).astype(np.float32)


def dense(linear):
    weight = {"kernel": jnp.asarray(linear.weight.detach().numpy().T)}
    if linear.bias is None:
        return weight | {"bias": jnp.zeros(linear.weight.shape[0])}
    return weight | {"bias": jnp.asarray(linear.bias.detach().numpy())}


def projections(query, key, value, out):
    return {
        "query": dense(query),
        "key": {"kernel": dense(key)["kernel"]},  # a bias there has no effect on the weights
        "value": dense(value),
        "out": dense(out),
    }


def additive(mask):
    return torch.where(torch.as_tensor(mask), 0.0, torch.finfo(torch.float32).min)


def compare(got, want, mask=MASK):
    got, want = np.asarray(got), want.detach().numpy()
    np.testing.assert_allclose(got[mask], want[mask], atol=ATOL)


def both_masks(causal):
    mask = MASK[:, None, None, :]
    return mask & np.tril(np.ones((LENGTH, LENGTH), bool)) if causal else mask


def bart():
    from transformers.models.bart.modeling_bart import BartAttention

    torch.manual_seed(0)
    config = transformers.BartConfig(d_model=D, attn_implementation="eager")
    return BartAttention(D, HEADS, config=config).eval()


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_of_bart(causal):
    theirs, x = bart(), inputs()
    want = theirs(torch.as_tensor(x), attention_mask=additive(both_masks(causal)))[0]
    ours = build(Full(), NoPosition(), causal=causal)
    heads = projections(theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.out_proj)
    got = ours.apply({"params": {"heads": heads}}, x, MASK)
    compare(got, want)


@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_cross_attention_of_bart(implementation):
    theirs, x, memory = bart(), inputs(), inputs(MEMORY, seed=1)
    mask = np.arange(MEMORY) < np.array([MEMORY, 2])[:, None]
    want = theirs(
        torch.as_tensor(x),
        key_value_states=torch.as_tensor(memory),
        attention_mask=additive(mask[:, None, None, :]),
    )[0]
    ours = FullCross(implementation=implementation).build(context(causal=False))
    heads = projections(theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.out_proj)

    got = ours.apply({"params": {"heads": heads}}, x, memory, mask)
    compare(got, want, np.ones((2, LENGTH), bool))


@pytest.mark.parametrize(("groups", "implementation"), [(6, "plain"), (2, "plain"), (1, "fused")])
def test_rope_and_grouped_heads_of_llama(groups, implementation):
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=D,
        num_attention_heads=HEADS,
        num_key_value_heads=groups,
        head_dim=K,
        attn_implementation="eager",
    )
    theirs, x = LlamaAttention(config, 0).eval(), inputs()
    positions = torch.arange(LENGTH)[None]
    want = theirs(
        torch.as_tensor(x),
        position_embeddings=LlamaRotaryEmbedding(config)(torch.as_tensor(x), positions),
        attention_mask=additive(both_masks(causal=True)),
    )[0]

    def neighbours(weights):
        # Llama rotates feature i together with i + K/2, the paper and we with its neighbour.
        order = np.arange(K).reshape(2, K // 2).T.reshape(-1)
        features = weights["kernel"].shape[1]
        index = (np.arange(0, features, K)[:, None] + order).reshape(-1)
        return {name: value[..., index] for name, value in weights.items()}

    heads = projections(theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.o_proj)
    heads |= {name: neighbours(heads[name]) for name in ("query", "key")}
    config = Full(num_kv_heads=groups, implementation=implementation)
    ours = build(config, Rope(), causal=True)
    compare(ours.apply({"params": {"heads": heads}}, x, MASK), want)


@pytest.mark.parametrize("causal", [False, True])
def test_relative_bias_of_t5(causal):
    from transformers.models.t5.modeling_t5 import T5Attention

    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=D,
        num_heads=HEADS,
        d_kv=K,
        is_decoder=causal,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=6,
        attn_implementation="eager",
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    x = inputs()
    want = theirs(torch.as_tensor(x), mask=additive(both_masks(causal)))[0]
    heads = projections(theirs.q, theirs.k, theirs.v, theirs.o)
    heads["query"]["kernel"] *= K**0.5  # T5 leaves the scores unscaled
    table = jnp.asarray(theirs.relative_attention_bias.weight.detach().numpy())
    ours = build(Full(), T5(num_buckets=8, max_distance=6, multiplier=1.0), causal=causal)
    params = {"heads": heads, "position": {"table": table}}
    compare(ours.apply({"params": params}, x, MASK), want)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_buckets_of_t5_at_every_distance(bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = np.arange(-300, 301)
    sizes = {"bidirectional": bidirectional, "num_buckets": 32, "max_distance": 128}
    want = T5Attention._relative_position_bucket(torch.as_tensor(distances), **sizes)
    np.testing.assert_array_equal(relative_buckets(jnp.asarray(distances), **sizes), want)


def test_alibi_of_bloom():
    # Six heads are not a power of two, so the interleaved slopes are tested too.
    from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor

    torch.manual_seed(0)
    config = transformers.BloomConfig(hidden_size=D, n_head=HEADS, hidden_dropout=0.0)
    theirs, x = BloomAttention(config, 0).eval(), inputs()
    want = theirs(
        torch.as_tensor(x),
        torch.zeros(2, LENGTH, D),
        build_alibi_tensor(torch.as_tensor(MASK), HEADS, torch.float32),
        additive(both_masks(causal=True)),
    )[0]
    fused = dense(theirs.query_key_value)  # [D, H * (q, k, v) * K]
    split = {name: x.reshape(*x.shape[:-1], HEADS, 3, K) for name, x in fused.items()}
    part = lambda i: {n: x[..., i, :].reshape(*x.shape[:-3], -1) for n, x in split.items()}  # noqa: E731
    heads = {
        "query": part(0),
        "key": {"kernel": part(1)["kernel"]},
        "value": part(2),
        "out": dense(theirs.dense),
    }
    ours = build(Full(), Alibi(), causal=True)
    compare(ours.apply({"params": {"heads": heads}}, x, MASK), want)


def test_sinusoids_of_marian():
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(50, D).create_weight().numpy()
    ours = np.asarray(sinusoids(jnp.arange(50), D))
    # Marian has all sines before all cosines; the paper and we alternate.
    np.testing.assert_allclose(ours[:, 0::2], theirs[:, : D // 2], atol=ATOL)
    np.testing.assert_allclose(ours[:, 1::2], theirs[:, D // 2 :], atol=ATOL)


def test_learned_positions_of_bart():
    from transformers.models.bart.modeling_bart import BartLearnedPositionalEmbedding

    torch.manual_seed(0)
    theirs, words = BartLearnedPositionalEmbedding(LENGTH, D), inputs()
    # Bart's first two rows are not positions; ours are scaled by sqrt(D) when they are used.
    table = theirs.weight.detach().numpy()[2:] / D**0.5
    ours = Learned().build(context(causal=True))
    for first in (0, 4):  # a whole sequence, and one that continues after four tokens
        x = words[:, first:]
        want = torch.as_tensor(x) + theirs(torch.as_tensor(x), past_key_values_length=first)
        at = jnp.arange(first, LENGTH)
        got = ours.apply({"params": {"table": jnp.asarray(table)}}, x, at, method="embed")
        compare(got, want, np.ones(x.shape[:2], bool))
