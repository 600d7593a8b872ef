"""Positive orthogonal random features for the softmax kernel: FAVOR+ (Choromanski et
al. 2020, arXiv:2009.14794, lemma 1 and section 2.4).

    exp(<x, y>) = E_w [exp(<w, x> - |x|^2 / 2) exp(<w, y> - |y|^2 / 2)],   w ~ N(0, I)
"""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jax import Array


@lru_cache(maxsize=64)
def orthogonal_directions(features: int, width: int, seed: int) -> np.ndarray:
    """R draws from N(0, I) over `width` dimensions, orthogonal in blocks of `width`.

    Each row has the distribution of an independent draw (a uniform direction and a
    chi-distributed length), so the estimate is unbiased; orthogonality within a block lowers
    its variance.

    Returns:
        [R, K] float32, the same array for the same arguments on every machine.
    """
    rng = np.random.default_rng(seed)
    blocks = []
    for _ in range(-(-features // width)):
        q, r = np.linalg.qr(rng.standard_normal((width, width)))
        # The signs make the rotation uniform; `qr` chooses them by a convention.
        blocks.append(q.T * np.sign(np.diag(r))[:, None])
    directions = np.concatenate(blocks)[:features]
    lengths = np.linalg.norm(rng.standard_normal((features, width)), axis=1)
    return (directions * lengths[:, None]).astype(np.float32)


def log_positive_features(x: Array, directions_RK: np.ndarray) -> Array:
    """log of exp(<w_r, x> - |x|^2 / 2): [..., K] -> [..., R] in float32.

    The common factor 1 / sqrt(R) of the features is omitted; it cancels in attention.
    """
    x = x.astype(jnp.float32)
    projected = jnp.einsum("...k,rk->...r", x, directions_RK)
    return projected - 0.5 * (x * x).sum(axis=-1, keepdims=True)
