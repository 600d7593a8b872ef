"""Reversible residuals (Gomez et al. 2017, arXiv:1707.04585; in the Transformer: Kitaev et
al. 2020, arXiv:2001.04451, section 3).

Two streams a, b in place of one, both x at first. Each sublayer, f(x) = dropout(
sublayer(norm(x))), adds to one what it makes of the other:

    (a, b) -> (b, a + f(b)),        undone by        (a, b) -> (b - f(a), a)

so that the backward pass finds each sublayer's input again from its output, and training
keeps the activations of one sublayer at a time, not of all: memory does not grow with
depth. It costs one more forward pass, and what is found again is equal up to rounding.
Dropout is replayed from the same keys. The stack's output is (a + b) / 2, which keeps the
width at d_model where the paper's concatenation doubles it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

#: One sublayer: (its parameters, those shared by the stack, x, memory, masks, key) -> f(x).
Update = Callable[..., jax.Array]
Pair = tuple[jax.Array, jax.Array]


def forward_pair(pair: Pair, update: Callable[[jax.Array], jax.Array]) -> Pair:
    """One sublayer further."""
    a, b = pair
    return b, a + update(b)


def run_stack(stack: nn.Module, x_BLD: jax.Array, memory: Any, masks: Any) -> jax.Array:
    """All blocks of a bound `Encoder` or `Decoder`, [B, L, D] -> [B, L, D].

    With a dropout key, as in training, the backward pass reconstructs the activations.

    Args:
        stack: has `blocks`, and `update(layer, index, x, memory, masks)`.
        x_BLD: the embedded tokens.
        memory: a pytree of arrays that gradients flow to, besides x.
        masks: a pytree of arrays that they do not.
    """
    places = [(i, j) for i, block in enumerate(stack.blocks) for j in range(block.num_updates)]
    if stack.is_initializing() or not stack.has_rng("dropout"):

        def update_at(layer: int, index: int, x: jax.Array) -> jax.Array:
            return stack.update(layer, index, x, memory, masks)

        pair = (x_BLD, x_BLD)
        for i, j in places:
            pair = forward_pair(pair, partial(update_at, i, j))
        return (pair[0] + pair[1]) / 2
    params = dict(stack.variables["params"])
    own = [params.pop(f"blocks_{i}") for i in range(len(stack.blocks))]
    updates = tuple(_pure_update(stack.clone(parent=None), i, j) for i, j in places)
    # A key of its own for each sublayer, so that either direction can draw the same bits.
    keys = tuple(jax.random.split(stack.make_rng("dropout"), len(places)))
    a, b = _run(updates, [own[i] for i, _ in places], params, x_BLD, memory, masks, keys)
    return (a + b) / 2


def step_stack(
    blocks: Sequence[Any],
    x_BZD: jax.Array,
    position: jax.Array,
    state: list[Any],
    projected: list[Any],
) -> tuple[jax.Array, list[Any]]:
    """One token of each beam through a decoder's blocks: ([B, Z, D], the next state)."""
    a_BZD = b_BZD = x_BZD
    next_state = []
    for block, layer_state, memory in zip(blocks, state, projected, strict=True):
        for index in range(block.num_updates):
            y_BZD, layer_state = block.update_step(index, b_BZD, layer_state, memory, position)
            a_BZD, b_BZD = b_BZD, a_BZD + y_BZD
        next_state.append(layer_state)
    return (a_BZD + b_BZD) / 2, next_state


def _pure_update(stack: nn.Module, layer: int, index: int) -> Update:
    def update(
        own: Any, shared: Any, x_BLD: jax.Array, memory: Any, masks: Any, key: jax.Array
    ) -> jax.Array:
        return stack.apply(
            {"params": {**shared, f"blocks_{layer}": own}},
            layer,
            index,
            x_BLD,
            memory,
            masks,
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

        def further(pair: Pair, inputs: Any, update: Update = update) -> Pair:
            params, shared, memory, masks, key = inputs
            return forward_pair(pair, lambda x: update(params, shared, x, memory, masks, key))

        pair = _once(further, pair, (params, shared, memory, masks, key))
    return pair


def _once(function: Callable[[Any, Any], Any], carry: Any, inputs: Any) -> Any:
    """function(carry, inputs), as a loop of one turn whose end the compiler cannot see.

    Left alone, XLA computes early what it can, and holds it: what each sublayer makes of the
    memory, its dropout masks, and in the backward pass all reconstructed activations (its
    CPU backend does not heed an `optimization_barrier` between them). Inside the turn the
    inputs are tied to the loop's counter, or what hangs on them alone would be moved out.
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

        def back(state: Any, inputs: Any, update: Update = update) -> Any:
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
        carry, d_params = _once(back, (carry, zeros(params)), inputs)
        d_own.append(d_params)
    _, _, da, db, d_shared, d_memory = carry
    return d_own[::-1], d_shared, da + db, d_memory, None, None


_run.defvjp(_run_forward, _run_backward)
