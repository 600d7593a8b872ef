"""BigBird's encoder equals the block-sparse attention of the Hugging Face library.

Their global blocks are the first and the last, ours the first two, and theirs draw the
random blocks from NumPy's global state. Attention without positions does not mind the
order of the blocks, so here their last block is our second; and their draw is replaced by
our plan, the same for all heads.
"""

import jax
import jax.numpy as jnp
import numpy as np

from tests.oracles import need
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.bigbird import BigBird
from transformer_jax.positions.none import NoPosition

torch = need("torch")
transformers = need("transformers")

BATCH, D, HEADS, BLOCK, BLOCKS, RANDOM = 2, 16, 4, 4, 9, 2
LENGTH = BLOCK * BLOCKS
#: their block at each of our positions
ORDER = [0, BLOCKS - 1, *range(1, BLOCKS - 1)]


def theirs(random_blocks):
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    config = transformers.BigBirdConfig(
        hidden_size=D,
        num_attention_heads=HEADS,
        block_size=BLOCK,
        num_random_blocks=RANDOM,
        max_position_embeddings=LENGTH,
    )
    torch.manual_seed(0)
    module = BigBirdBlockSparseAttention(config, seed=0).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    module._bigbird_block_rand_mask_with_head = lambda **_: [random_blocks] * HEADS
    return module


def ours():
    context = MixerContext(D, HEADS, D // HEADS, max_length=LENGTH, causal=False)
    config = BigBird(BLOCK, window_blocks=1, global_blocks=2, random_blocks=RANDOM)
    return config.build(context, NoPosition().build(context))


def drawn(plan):
    """Our random blocks for their blocks 1 ... N-2, in their numbering."""
    rows = []
    for n in range(2, BLOCKS):
        fixed = {0, 1, *range(n - 1, min(n + 1, BLOCKS - 1) + 1)}
        rows.append([ORDER[m] for m in plan[n] if m >= 0 and m not in fixed])
    return np.array(rows)


def run_theirs(module, x, mask):
    from transformers.models.big_bird.modeling_big_bird import BigBirdModel

    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.from_numpy(mask.astype(np.float32)), BLOCK
    )
    with torch.no_grad():
        y, *_ = module(
            torch.from_numpy(x),
            band_mask=band,
            from_mask=rows,
            to_mask=columns,
            from_blocked_mask=blocked,
            to_blocked_mask=blocked,
        )
    return y.numpy()


def test_equal():
    mixer = ours()
    random_blocks = drawn(mixer.plan(LENGTH))
    assert random_blocks.shape == (BLOCKS - 2, RANDOM)
    module = theirs(random_blocks)
    x = np.random.default_rng(0).normal(size=(BATCH, LENGTH, D)).astype(np.float32)
    mask = np.ones((BATCH, LENGTH), bool)
    mask[1, 14:23] = False
    heads = {"out": {"kernel": np.eye(D, dtype=np.float32), "bias": np.zeros(D)}}
    for name in ("query", "key", "value"):
        linear = getattr(module, name)
        heads[name] = {"kernel": linear.weight.T.detach().numpy()}
        if name != "key":  # a bias on the keys has no effect
            heads[name]["bias"] = linear.bias.detach().numpy()
    at = np.arange(LENGTH).reshape(BLOCKS, BLOCK)[ORDER].reshape(-1)
    ordered = jnp.asarray(mask[:, at])
    apply = jax.jit(lambda p, x: mixer.apply({"params": p}, x, ordered))
    got = np.zeros_like(x)
    got[:, at] = apply({"heads": heads}, x[:, at])
    np.testing.assert_allclose(got[mask], run_theirs(module, x, mask)[mask], atol=1e-5)
