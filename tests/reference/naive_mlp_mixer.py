"""Token mixing, position by position."""

import jax
import jax.numpy as jnp


def naive_token_mlp(x_BLD, mask_BL, up, up_bias, down, down_bias, *, causal):
    """[B, L, D] -> [B, L, D] with kernels [in, out]; in the decoder unit s is at position s."""
    batch, length, width = x_BLD.shape
    units = length if causal else up.shape[1]
    rows = []
    for b in range(batch):
        hidden = []
        for s in range(units):
            total = up_bias[s] * jnp.ones(width)
            for j in range(s + 1 if causal else length):
                if mask_BL[b, j]:
                    total = total + up[j, s] * x_BLD[b, j]
            hidden.append(jax.nn.gelu(total))
        rows.append(
            jnp.stack(
                [
                    down_bias[t]
                    + sum(down[s, t] * hidden[s] for s in range(t + 1 if causal else units))
                    for t in range(length)
                ]
            )
        )
    return jnp.stack(rows)
