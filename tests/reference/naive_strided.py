"""The strided pattern of Sparse Transformers, pair by pair."""

import numpy as np


def naive_strided_mask(length, stride, causal):
    """[L, L]: neighbours up to a stride away, and all at a multiple of the stride."""
    mask = np.zeros((length, length), bool)
    for i in range(length):
        for j in range(i + 1 if causal else length):
            mask[i, j] = abs(i - j) <= stride or (i - j) % stride == 0
    return mask
