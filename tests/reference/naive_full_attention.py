"""Full attention by loops over rows, heads and queries, in NumPy."""

import numpy as np


def attend(scores_HTM, values_MHK, mask_TM):
    """softmax(scores) V, one query of one head at a time; [T, H, K]."""
    heads, length, _ = scores_HTM.shape
    out = np.zeros((length, heads, values_MHK.shape[-1]))
    for h in range(heads):
        for t in range(length):
            keys = np.flatnonzero(mask_TM[t])
            scores = scores_HTM[h, t, keys]
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            out[t, h] = weights @ values_MHK[keys, h]
    return out


def full_attention(params, x_TD, memory_MD, mask_TM, *, num_heads, head_dim, bias_HTM=0.0):
    """One row; `params` as `HeadProjections` holds them."""
    params = {k: {n: np.asarray(a, np.float64) for n, a in v.items()} for k, v in params.items()}

    def project(name, x):
        return x @ params[name]["kernel"] + params[name].get("bias", 0.0)

    def split(x):
        return x.reshape(len(x), -1, head_dim)

    def all_heads(x):  # query head h reads head h // (H / G)
        return np.repeat(x, num_heads // x.shape[1], axis=1)

    keys = all_heads(split(project("key", memory_MD)))
    scores = np.einsum("thk,mhk->htm", split(project("query", x_TD)), keys)
    scores = scores / np.sqrt(head_dim) + bias_HTM
    heads = attend(scores, all_heads(split(project("value", memory_MD))), mask_TM)
    return project("out", heads.reshape(len(heads), -1))
