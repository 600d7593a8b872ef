"""`linear` and `linformer` as cross-attention against published code, rewritten in float64."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer_jax.mixers.registry import CROSS_MIXERS
from transformer_jax.testing import mixers as suite


def heads(p, name, x_BLD):
    """x W + b, with the heads split: [B, L, H, K]."""
    y = x_BLD @ p[name]["kernel"] + p[name].get("bias", 0.0)
    return y.reshape(*y.shape[:2], suite.HEADS, -1)


def joined(p, y_BTHK):
    return y_BTHK.reshape(*y_BTHK.shape[:2], -1) @ p["out"]["kernel"] + p["out"]["bias"]


def published_linear(p, x_BTD, memory_BMD, mask_BM):
    """`LinearAttention.forward` of idiap/fast-transformers, attention/linear_attention.py."""
    p = p["heads"]
    q_BTHK = heads(p, "query", x_BTD)
    k_BMHK, v_BMHK = (heads(p, name, memory_BMD) for name in ("key", "value"))
    q_BTHK, k_BMHK = (np.where(z > 0, z + 1, np.exp(np.minimum(z, 0))) for z in (q_BTHK, k_BMHK))
    k_BMHK = k_BMHK * mask_BM[..., None, None]
    kv_BHKV = np.einsum("bmhk,bmhv->bhkv", k_BMHK, v_BMHK)
    z_BTH = 1 / (np.einsum("bthk,bhk->bth", q_BTHK, k_BMHK.sum(1)) + 1e-6)
    return joined(p, np.einsum("bthk,bhkv,bth->bthv", q_BTHK, kv_BHKV, z_BTH))


def published_linformer(p, x_BTD, memory_BMD, mask_BM):
    """`LinformerSelfAttention.forward` with a context, of lucidrains/linformer.

    It has no mask; cutting the context to its real tokens is what the mask does here. Its keys and
    values have no bias.
    """
    out = []
    for x_TD, memory_MD, mask_M in zip(x_BTD, memory_BMD, mask_BM, strict=True):
        memory_1MD = memory_MD[mask_M][None]
        length = memory_1MD.shape[1]
        e_MR, f_MR = (
            p["length_projection"][f"{name}_projection"][0, :length] for name in ("key", "value")
        )
        q_THK = heads(p["heads"], "query", x_TD[None])[0]
        k_RHK = np.einsum("mhk,mr->rhk", heads(p["heads"], "key", memory_1MD)[0], e_MR)
        v_RHK = np.einsum("mhk,mr->rhk", heads(p["heads"], "value", memory_1MD)[0], f_MR)
        dots_HTR = np.einsum("thk,rhk->htr", q_THK, k_RHK) * q_THK.shape[-1] ** -0.5
        weights_HTR = np.exp(dots_HTR - dots_HTR.max(-1, keepdims=True))
        weights_HTR /= weights_HTR.sum(-1, keepdims=True)
        out.append(np.einsum("htr,rhk->thk", weights_HTR, v_RHK))
    return joined(p["heads"], np.stack(out))


def assert_equals(published, mixer):
    memory = jax.random.normal(jax.random.key(7), (suite.BATCH, suite.MEMORY, suite.D))
    mask = jnp.arange(suite.MEMORY)[None] < jnp.array([suite.MEMORY, 2, 1])[:, None]

    variables = nn.unbox(mixer.init(jax.random.key(1), suite.inputs(), memory, mask))
    leaves, tree = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    moved = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    variables = jax.tree.unflatten(tree, moved)
    got = mixer.apply(variables, suite.inputs(), memory, mask)
    exact = jax.tree.map(lambda w: np.asarray(w, np.float64), variables["params"])
    x, memory = (np.asarray(z, np.float64) for z in (suite.inputs(), memory))
    want = published(exact, x, memory, np.asarray(mask))
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_linear():
    assert_equals(published_linear, CROSS_MIXERS["linear"]().build(suite.context(causal=False)))


def test_linformer():
    mixer = CROSS_MIXERS["linformer"](rank=3).build(suite.context(causal=False))
    assert_equals(published_linformer, mixer)
