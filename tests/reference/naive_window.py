"""The sliding window, token by token."""

import numpy as np


def naive_window_mask(length, window, dilation, causal):
    """[L, L]: i may read i + d m for -w <= m <= w (causal: m <= 0)."""
    mask = np.zeros((length, length), bool)
    for i in range(length):
        for m in range(-window, 1 if causal else window + 1):
            if 0 <= i + dilation * m < length:
                mask[i, i + dilation * m] = True
    return mask
