"""Training with reversible residuals (Gomez et al. 2017, arXiv:1707.04585; in the
Transformer: Kitaev et al. 2020, arXiv:2001.04451, section 3).

There are two streams a and b, both x at first. Each sublayer, f(x) = dropout(
sublayer(norm(x))), adds to one of them its output for the other:

    (a, b) -> (b, a + f(b)),        with the inverse        (a, b) -> (b - f(a), a)

So the backward pass reconstructs each sublayer's input from its output, and training keeps
the activations of one sublayer at a time: memory does not grow with depth. This costs one
more forward pass, and the reconstruction is exact up to rounding. Dropout is replayed from
the same keys. The stack's output is (a + b) / 2, which keeps the width d_model, where the
paper's concatenation doubles it.

`models.block` holds the forward pass, which is differentiated as usual where nothing is
dropped. This file holds the forward and backward pass of training.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

#: One sublayer: (its block's parameters, those shared by the stack, x, memory, masks, key) -> f(x).
Update = Callable[..., jax.Array]
Pair = tuple[jax.Array, jax.Array]


def run_stack(
    stack: nn.Module, x_BLD: jax.Array, mask_BL: jax.Array, memory: Sequence[jax.Array]
) -> Pair:
    """Both streams after all blocks of a bound `Stack`, with a memory-efficient gradient.

    The arguments are those of a block. Needs a "dropout" key.
    """
    places = [
        (i, j)
        for i, block in enumerate(stack.blocks)
        for j in range(len(block.sublayers(mask_BL, memory)))
    ]
    params = dict(stack.variables["params"])
    own = [params.pop(f"blocks_{i}") for i in range(len(stack.blocks))]
    updates = tuple(_pure_update(stack.clone(parent=None), i, j) for i, j in places)
    # Every sublayer has its own key, so that both directions draw the same bits.
    keys = tuple(jax.random.split(stack.make_rng("dropout"), len(places)))
    masks = (mask_BL, *memory[1:])
    return _run(updates, [own[i] for i, _ in places], params, x_BLD, memory[:1], masks, keys)


def _pure_update(stack: nn.Module, layer: int, index: int) -> Update:
    def update(
        own: Any, shared: Any, x_BLD: jax.Array, memory: Any, masks: Any, key: jax.Array
    ) -> jax.Array:
        mask_BL, *memory_mask = masks
        return stack.apply(
            {"params": {**shared, f"blocks_{layer}": own}},
            layer,
            index,
            x_BLD,
            mask_BL,
            (*memory, *memory_mask),
            rngs={"dropout": key},
            method="update",
        )

    return update


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(
    updates: tuple[Update, ...],
    own: list[Any],
    shared: Any,
    x_BLD: jax.Array,
    memory: Any,
    masks: Any,
    keys: tuple[jax.Array, ...],
) -> Pair:
    pair = (x_BLD, x_BLD)
    for update, params, key in zip(updates, own, keys, strict=True):

        def forward(pair: Pair, inputs: Any, update: Update = update) -> Pair:
            params, shared, memory, masks, key = inputs
            a, b = pair
            return b, a + update(params, shared, b, memory, masks, key)

        pair = _once(forward, pair, (params, shared, memory, masks, key))
    return pair


def _once(function: Callable[[Any, Any], Any], carry: Any, inputs: Any) -> Any:
    """function(carry, inputs), as a loop of one turn whose length the compiler does not know.

    Otherwise XLA computes as much as possible early and keeps it in memory: what each sublayer
    computes from the memory, its dropout masks, and in the backward pass all reconstructed
    activations (its CPU backend ignores an `optimization_barrier` between them). Inside the
    loop the inputs are tied to the counter, so that what depends only on them is not moved out.
    """

    def turn(i: jax.Array, carry: Any) -> Any:
        _, tied = jax.lax.optimization_barrier((i, inputs))
        return function(carry, tied)

    one = jax.lax.optimization_barrier(jnp.int32(1))
    return jax.lax.fori_loop(0, one, turn, carry)


def _run_forward(updates: tuple[Update, ...], *args: Any) -> tuple[Pair, Any]:
    own, shared, _, memory, masks, keys = args
    pair = _run(updates, *args)
    return pair, (pair, own, shared, memory, masks, keys)


def _run_backward(updates: tuple[Update, ...], residuals: Any, gradients: Pair) -> tuple[Any, ...]:
    pair, own, shared, memory, masks, keys = residuals
    zeros = partial(jax.tree.map, jnp.zeros_like)
    carry = *pair, *gradients, zeros(shared), zeros(memory)
    d_own = []
    for update, params, key in reversed(list(zip(updates, own, keys, strict=True))):

        def backward(state: Any, inputs: Any, update: Update = update) -> Any:
            (a, b, da, db, d_shared, d_memory), _ = state
            params, shared, memory, masks, key = inputs
            y, pull = jax.vjp(
                lambda p, s, x, m: update(p, s, x, m, masks, key), params, shared, a, memory
            )
            d_params, d_shared_here, dx, d_memory_here = pull(db)
            d_shared, d_memory = jax.tree.map(
                jnp.add, (d_shared, d_memory), (d_shared_here, d_memory_here)
            )
            return (b - y, a, db, da + dx, d_shared, d_memory), d_params

        inputs = params, shared, memory, masks, key
        carry, d_params = _once(backward, (carry, zeros(params)), inputs)
        d_own.append(d_params)
    _, _, da, db, d_shared, d_memory = carry
    return d_own[::-1], d_shared, da + db, d_memory, None, None


_run.defvjp(_run_forward, _run_backward)
