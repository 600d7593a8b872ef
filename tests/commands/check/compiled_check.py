"""Run by tests/plan: the attention programs of `check`, for a device that is described."""

import json
import sys
from functools import partial

import jax
import jax.numpy as jnp

from transformer_jax.commands.check.numbers import ATTENTION_SHAPE, attention_program
from transformer_jax.ops.flash_attention import chosen_kernel, flash_attention
from transformer_jax.parallel.mesh import MeshConfig, activations_on, make_mesh, replicated
from transformer_jax.plan.topologies import described


def main() -> None:
    """Prints the kernel of each dtype as JSON, after its programs were compiled."""
    target = described(sys.argv[1])
    mesh = make_mesh(MeshConfig(), target.devices[:1])

    def attend(*arrays, **options):
        with activations_on(mesh):
            return flash_attention(*arrays, **options)

    kernels = {}
    for dtype in ("bfloat16", "float32"):
        array = partial(jax.ShapeDtypeStruct, sharding=replicated(mesh))
        qkv = [array(ATTENTION_SHAPE, jnp.dtype(dtype))] * 3
        arrays = [*qkv, array(ATTENTION_SHAPE[:2], bool), array(ATTENTION_SHAPE, jnp.float32)]
        lowered = jax.jit(attention_program({"chosen": attend})).lower(*arrays)
        lowered.compile(compiler_options=dict(target.options))
        with activations_on(mesh):
            kernels[dtype] = chosen_kernel(qkv[0])
    print(json.dumps(kernels))


if __name__ == "__main__":
    main()
