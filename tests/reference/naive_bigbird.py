"""BigBird's blocks spelled out as an L x L mask."""

import numpy as np


def naive_bigbird_mask(length, block, reads, global_blocks, causal):
    """[L, L], given each query block's list of key blocks."""
    mask = np.zeros((length, length), bool)
    for i in range(length):
        for j in range(i + 1 if causal else length):
            is_global = not causal and i // block < global_blocks
            mask[i, j] = is_global or j // block in reads[i // block]
    return mask
