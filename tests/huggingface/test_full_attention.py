"""Full attention with rotary positions and ALiBi against the Hugging Face library's PyTorch models.

Their random weights are copied into our parameters; outputs in float32. Plain attention, sinusoids,
learned positions and T5's bias are compared in whole models: tests/formats/test_families.py.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import need
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.full_attention import Full
from transformer_jax.positions.alibi import Alibi
from transformer_jax.positions.rope import Rope
from transformer_jax.positions.t5 import relative_buckets

torch = need("torch")
transformers = need("transformers")

D, HEADS, K, LENGTH = 24, 6, 4, 9
MASK = np.arange(LENGTH) < np.array([LENGTH, 5])[:, None]


def build(config, position):
    context = MixerContext(D, HEADS, K, LENGTH, causal=True)
    return config.build(context, position.build(context))


def inputs():
    return np.random.default_rng(0).normal(size=(2, LENGTH, D)).astype(np.float32)


def dense(linear):
    weight = {"kernel": jnp.asarray(linear.weight.detach().numpy().T)}
    if linear.bias is None:
        return weight | {"bias": jnp.zeros(linear.weight.shape[0])}
    return weight | {"bias": jnp.asarray(linear.bias.detach().numpy())}


def additive_mask():
    mask = MASK[:, None, None, :] & np.tril(np.ones((LENGTH, LENGTH), bool))
    return torch.where(torch.as_tensor(mask), 0.0, torch.finfo(torch.float32).min)


def compare(got, want):
    got, want = np.asarray(got), want.detach().numpy()
    np.testing.assert_allclose(got[MASK], want[MASK], atol=1e-5)


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
        attention_mask=additive_mask(),
    )[0]

    def neighbours(weights):
        # Llama rotates feature i together with i + K/2, the paper and we with its neighbour.
        order = np.arange(K).reshape(2, K // 2).T.reshape(-1)
        features = weights["kernel"].shape[1]
        index = (np.arange(0, features, K)[:, None] + order).reshape(-1)
        return {name: value[..., index] for name, value in weights.items()}

    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
    heads = {ours: dense(getattr(theirs, name)) for ours, name in names.items()}
    del heads["key"]["bias"]  # it has no effect on the weights
    heads |= {name: neighbours(heads[name]) for name in ("query", "key")}
    config = Full(num_kv_heads=groups, implementation=implementation)
    ours = build(config, Rope())
    compare(ours.apply({"params": {"heads": heads}}, x, MASK), want)


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
        additive_mask(),
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
    ours = build(Full(), Alibi())
    compare(ours.apply({"params": {"heads": heads}}, x, MASK), want)
