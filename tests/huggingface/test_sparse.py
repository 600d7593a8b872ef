"""Longformer's and BigBird's attention equal those of the Hugging Face library on the same weights.

BigBird's global blocks are there the first and the last, ours the first two, and theirs draw the
random blocks from NumPy's global state. Attention without positions does not mind the
order of the blocks, so here their last block is our second; and their draw is replaced by
our plan, the same for all heads.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import need
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.bigbird import BigBird
from transformer_jax.mixers.longformer import Longformer
from transformer_jax.mixers.window import Window
from transformer_jax.positions.none import NoPosition

torch = need("torch")
transformers = need("transformers")

BATCH, D, HEADS, WINDOW = 2, 16, 4, 3
BLOCK, BLOCKS, RANDOM = 4, 9, 2
#: their block at each of our positions
ORDER = [0, BLOCKS - 1, *range(1, BLOCKS - 1)]


def randomised(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module.eval()


def ours(config, length):
    context = MixerContext(D, HEADS, D // HEADS, max_length=length, causal=False)
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


def joined(heads):
    """The same, and heads that are joined as they are."""
    return heads | {"out": {"kernel": np.eye(D, dtype=np.float32), "bias": np.zeros(D)}}


def inputs(length):
    return np.random.default_rng(0).normal(size=(BATCH, length, D)).astype(np.float32)


def compare(mixer, params, x, mask, want, at):
    """The outputs at real tokens; `at` has their place of each of our tokens."""
    apply = jax.jit(lambda p, x: mixer.apply({"params": p}, x, jnp.asarray(mask[:, at])))
    got = np.zeros_like(x)
    got[:, at] = apply(params, x[:, at])
    np.testing.assert_allclose(got[mask], want[mask], atol=1e-5)


@pytest.mark.parametrize("num_global", [0, 1, 5])
def test_longformer(num_global):
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    length = 24
    config = transformers.LongformerConfig(
        hidden_size=D,
        num_attention_heads=HEADS,
        attention_window=[2 * WINDOW],
        attention_probs_dropout_prob=0.0,
    )
    module, x = randomised(LongformerSelfAttention(config, layer_id=0)), inputs(length)
    mask = np.arange(length) < np.array([length, 17])[:, None]
    # Their mask says -10000 for padding, 0 for a token and +10000 for a global one.
    kind = np.where(mask, 0.0, -10000.0).astype(np.float32)
    kind[:, :num_global] = 10000.0
    kind = torch.from_numpy(kind)
    with torch.no_grad():
        want, *_ = module(
            torch.from_numpy(x),
            attention_mask=kind,
            is_index_masked=kind < 0,
            is_index_global_attn=kind > 0,
            is_global_attn=num_global > 0,
        )
    mixer, params = Window(WINDOW), {"heads": joined(copied(module))}
    if num_global:
        mixer = Longformer(WINDOW, num_global=num_global)
        params["global_heads"] = copied(module, "_global")
    compare(ours(mixer, length), params, x, mask, want.numpy(), np.arange(length))


def test_bigbird():
    from transformers.models.big_bird.modeling_big_bird import (
        BigBirdBlockSparseAttention,
        BigBirdModel,
    )

    length = BLOCK * BLOCKS
    mixer = ours(BigBird(BLOCK, window_blocks=1, global_blocks=2, random_blocks=RANDOM), length)
    # Our random blocks for their blocks 1 ... N-2, in their numbering.
    rows, plan = [], mixer.plan(length)
    for n in range(2, BLOCKS):
        fixed = {0, 1, *range(n - 1, min(n + 1, BLOCKS - 1) + 1)}
        rows.append([ORDER[m] for m in plan[n] if m >= 0 and m not in fixed])
    random_blocks = np.array(rows)
    assert random_blocks.shape == (BLOCKS - 2, RANDOM)

    config = transformers.BigBirdConfig(
        hidden_size=D,
        num_attention_heads=HEADS,
        block_size=BLOCK,
        num_random_blocks=RANDOM,
        max_position_embeddings=length,
    )
    module, x = randomised(BigBirdBlockSparseAttention(config, seed=0)), inputs(length)
    module._bigbird_block_rand_mask_with_head = lambda **_: [random_blocks] * HEADS
    mask = np.ones((BATCH, length), bool)
    mask[1, 14:23] = False
    blocked, band, from_mask, to_mask = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.from_numpy(mask.astype(np.float32)), BLOCK
    )
    masks = {"band_mask": band, "from_mask": from_mask, "to_mask": to_mask}
    masks |= {"from_blocked_mask": blocked, "to_blocked_mask": blocked}
    with torch.no_grad():
        want, *_ = module(torch.from_numpy(x), **masks)
    at = np.arange(length).reshape(BLOCKS, BLOCK)[ORDER].reshape(-1)
    compare(mixer, {"heads": joined(copied(module))}, x, mask, want.numpy(), at)
