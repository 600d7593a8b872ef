"""Longformer's self-attention equals that of the Hugging Face library on the same weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import need
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.longformer import Longformer
from transformer_jax.mixers.window import Window
from transformer_jax.positions.none import NoPosition

torch = need("torch")
transformers = need("transformers")

BATCH, LENGTH, D, HEADS, WINDOW = 2, 24, 16, 4, 3


def theirs():
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = transformers.LongformerConfig(
        hidden_size=D,
        num_attention_heads=HEADS,
        attention_window=[2 * WINDOW],
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    module = LongformerSelfAttention(config, layer_id=0).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def ours(config):
    context = MixerContext(D, HEADS, D // HEADS, max_length=LENGTH, causal=False)
    return config.build(context, NoPosition().build(context))


def copied(module, suffix=""):
    """Their projections as our parameters; our keys have no bias, which softmax ignores."""
    dense = {}
    for name in ("query", "key", "value"):
        linear = getattr(module, name + suffix)
        dense[name] = {"kernel": linear.weight.T.detach().numpy()}
        if name != "key":
            dense[name]["bias"] = linear.bias.detach().numpy()
    return dense


def run_theirs(module, x, mask, num_global):
    # Their mask says -10000 for padding, 0 for a token and +10000 for a global one.
    kind = np.where(mask, 0.0, -10000.0).astype(np.float32)
    kind[:, :num_global] = 10000.0
    kind = torch.from_numpy(kind)
    with torch.no_grad():
        y, *_ = module(
            torch.from_numpy(x),
            attention_mask=kind,
            is_index_masked=kind < 0,
            is_index_global_attn=kind > 0,
            is_global_attn=num_global > 0,
        )
    return y.numpy()


@pytest.mark.parametrize("num_global", [0, 1, 5])
def test_equal(num_global):
    module = theirs()
    x = np.random.default_rng(0).normal(size=(BATCH, LENGTH, D)).astype(np.float32)
    mask = np.arange(LENGTH) < np.array([LENGTH, 17])[:, None]
    want = run_theirs(module, x, mask, num_global)
    heads = copied(module) | {"out": {"kernel": np.eye(D, dtype=np.float32), "bias": np.zeros(D)}}
    if num_global:
        mixer = ours(Longformer(WINDOW, num_global=num_global))
        params = {"heads": heads, "global_heads": copied(module, "_global")}
    else:
        mixer, params = ours(Window(WINDOW)), {"heads": heads}
    apply = jax.jit(lambda p, x: mixer.apply({"params": p}, x, jnp.asarray(mask)))
    got = apply(params, x)
    np.testing.assert_allclose(np.asarray(got)[mask], want[mask], atol=1e-5)
