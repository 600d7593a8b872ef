"""Run by test_tpu.py and test_gpu.py: attention compiled for eight devices that are only described.

Prints one JSON object: the custom calls of the gradient as [target or name, sizes of each operand],
and the collectives.
"""

import json
import sys

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.ops.flash_attention import flash_attention
from transformer_jax.parallel.mesh import MeshConfig, activations_on, make_mesh
from transformer_jax.plan.hlo import by_kind, parse, walk
from transformer_jax.plan.topologies import described

BATCH, LENGTH, MEMORY, HEADS, GROUPS, WIDTH = 8, 512, 640, 8, 2, 64


def main() -> None:
    """Compiles the gradient of cross-attention over a mesh of 2 x 2 x 2."""
    target = described(sys.argv[1])
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), target.devices)

    def array(*sizes, dtype=jnp.bfloat16):
        spec = PartitionSpec(("data", "fsdp"), None, *["tensor", None][: len(sizes) - 2])
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))

    def gradient(q, k, v, mask):
        def loss(q, k, v):
            with activations_on(mesh):
                return flash_attention(q, k, v, mask).astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1, 2))(q, k, v)

    keys = array(BATCH, MEMORY, GROUPS, WIDTH)
    queries = array(BATCH, LENGTH, HEADS, WIDTH)
    mask = array(BATCH, MEMORY, dtype=jnp.bool_)
    lowered = jax.jit(gradient).lower(queries, keys, keys, mask)
    module = parse(lowered.compile(compiler_options=dict(target.options)).as_text())
    calls = [
        [f"{one.target} {one.name}", [arrays[0].sizes for arrays in one.inputs if arrays]]
        for one in walk(module)
        if one.opcode == "custom-call"
    ]
    print(json.dumps({"calls": calls, "collectives": by_kind(module, len(target.devices))}))


if __name__ == "__main__":
    main()
