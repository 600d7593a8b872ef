"""Layers that are alike as one loop, so that the compiler reads one of them, not all.

A stack's pattern of mixers is cycled over the depth. Layers at the same place of two cycles are
alike: the same functions of other parameters. So the loop's body is one cycle, with the parameters
of all cycles stacked as an input. They are stacked inside the program, by a copy: checkpoints,
optimizers and exporters see the parameters of each layer by itself.

For the backward pass the loop keeps its inputs and the products of `ops.matmul`, and computes the
rest again.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.ops.matmul import PRODUCT


def run_cycles(stack: nn.Module, length: int, x_BLD: Array, *inputs: Any) -> tuple[Array, int]:
    """Runs the blocks of the whole cycles of a bound `Stack`.

    Args:
        stack: has the method `run_blocks(layers, x_BLD, *inputs)`.
        length: the number of layers in a cycle.
        x_BLD: what the first block reads.
        inputs: what every block reads besides.

    Returns:
        (what the last of these blocks returns, the number of these blocks).
    """
    cycles = len(stack.blocks) // length
    if cycles < 2:
        return x_BLD, 0
    params = stack.variables["params"]
    # Every cycle is applied under the names of the first one.
    own = [
        {f"blocks_{i}": params[f"blocks_{cycle * length + i}"] for i in range(length)}
        for cycle in range(cycles)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *own)
    keys = jax.random.split(stack.make_rng("dropout"), cycles) if stack.has_rng("dropout") else None
    alone = stack.clone(parent=None)

    def run(x_BLD: Array, cycle: tuple[Any, Array | None]) -> tuple[Array, None]:
        own, key = cycle
        variables = {"params": {**params, **own}}
        rngs = {} if key is None else {"dropout": key}
        x_BLD = alone.apply(
            variables, range(length), x_BLD, *inputs, rngs=rngs, method="run_blocks"
        )
        return x_BLD, None

    if not stack.config.remat:
        # A loop keeps every array that the backward pass uses. Between separate layers XLA computes
        # all but the products again, where that is cheaper than to keep it.
        saved = jax.checkpoint_policies.save_only_these_names(PRODUCT)
        run = jax.checkpoint(run, policy=saved, prevent_cse=False)
    x_BLD, _ = jax.lax.scan(run, x_BLD, (stacked, keys))
    return x_BLD, length * cycles
