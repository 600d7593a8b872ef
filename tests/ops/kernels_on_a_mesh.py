"""Run by test_flash_attention.py in a process of its own, on 8 virtual CPU devices.

Computes attention on meshes with the interpreted splash kernel and without a mesh with the plain
one, and prints one JSON object: case -> the largest difference of the outputs and of each gradient,
and the shapes of the queries and keys of one device.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from transformer_jax.ops.attention import Hooks, attention_mask, dot_product_attention
from transformer_jax.ops.flash_attention import by_rows_and_heads, splash_attention
from transformer_jax.parallel.mesh import MeshConfig, activations_on, make_mesh

WIDTH = 8
CUBE, HEADS = MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=2, fsdp=1, tensor=4)
#: Name -> mesh, then B, T, M, H, G, and whether the attention is causal.
CASES = {
    "all axes": (CUBE, 4, 130, 130, 4, 4, True),
    "keys of another length": (CUBE, 4, 7, 131, 2, 2, False),
    "one head of keys": (CUBE, 4, 5, 5, 4, 1, True),
    "fewer heads of keys than devices": (HEADS, 2, 9, 6, 8, 2, False),
    "heads that are not divided": (CUBE, 4, 5, 6, 3, 3, False),
    "rows that are not divided": (CUBE, 3, 6, 6, 4, 2, True),
    "two blocks of queries": (CUBE, 4, 520, 300, 2, 2, False),
    "a block of four is skipped": (CUBE, 4, 530, 530, 2, 2, True),
}


def differences(mesh, batch, length, memory, heads, groups, causal):
    keys = jax.random.split(jax.random.key(0), 4)
    q, weights = jax.random.normal(keys[0], (2, batch, length, heads, WIDTH))
    k, v = jax.random.normal(keys[1], (2, batch, memory, groups, WIDTH))
    mask = np.arange(memory)[None] < np.linspace(memory, 1, batch).astype(int)[:, None]
    scale, on_a_device = 0.3, {}

    def kernel(q, k, v, mask):
        on_a_device.update(q=q.shape, k=k.shape)
        return splash_attention(q, k, v, mask, causal=causal, scale=scale)

    def split(q, k, v):
        with activations_on(make_mesh(mesh)):
            return by_rows_and_heads(kernel, (q, k, v), mask)

    def plain(q, k, v):
        mask_BHTM = attention_mask(mask, causal=causal)
        return dot_product_attention((q, k, v), mask_BHTM, hooks=Hooks(scale=scale))

    def with_gradients(attention):
        def loss(q, k, v):
            y = attention(q, k, v)
            return (y * weights).sum(), y

        gradients, y = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(q, k, v)
        return y, *gradients

    # True: by the interpreter that makes XLA operations. The other calls back into Python, and
    # eight devices waiting for each other's calls come to a standstill on two cores.
    with pltpu.force_tpu_interpret_mode(True):
        got = with_gradients(split)
    errors = [float(jnp.abs(a - b).max()) for a, b in zip(got, with_gradients(plain), strict=True)]
    return {"errors": errors, **on_a_device}


if __name__ == "__main__":
    print(json.dumps({name: differences(*case) for name, case in CASES.items()}))
