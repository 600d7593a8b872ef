"""The forms in which decoding holds the matrices of linear layers and embeddings.

A matrix of floats is held in the dtype of the products, so that no search rounds it again. A table
of embeddings that is also the projection to the vocabulary is a `Table`: its rows in the dtype of
the activations, and its transpose for the products.

An `Int8Matrix` is of int8 values, with a float32 scale for each output channel:

    W ~ values * scale        values in [-127, 127], scale = max |W| / 127 over the summed axis

A product sums up x values, and multiplies the sums by the scale. Each number of a matrix differs
from W by at most scale / 2: symmetric rounding to nearest, which is that of Jacob et al. 2018
(arXiv:1712.05877) without a zero point.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

#: The largest value. -128 is not used, so that a matrix and its negative have the same values.
LARGEST = 127


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Int8Matrix:
    """Stands for `values * scale`, where a parameter is a matrix of floats otherwise."""

    values: Any  #: int8, of the matrix's shape
    scale: Any  #: float32, of the same rank; 1 along the axes that are summed over

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def T(self) -> Self:  # noqa: N802  (as of an array)
        return replace(self, values=self.values.T, scale=self.scale.T)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Int8Products(Int8Matrix):
    """An `Int8Matrix` whose products are of int8 on both sides (`ops/int8_products.py`).

    `values` are whole numbers in floats, so that a training can have their gradient.
    """

    alpha: Any  #: float32 scalar that inputs are multiplied by; None: 127 / max |x| of each row


#: A matrix as a layer gets it.
Matrix = jax.Array | Int8Matrix


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Table:
    """Stands for a table of embeddings [V, D], which is also the projection to the vocabulary."""

    rows: Any  #: [V, D], as they are looked up
    T: Any  #: [D, V], as products read it


def in_dtypes(w: jax.Array | Table, looked_up: DTypeLike, product: DTypeLike) -> jax.Array | Table:
    """A table [V, D], or a `Table` as it is, with its rows and its transpose in these dtypes."""
    if isinstance(w, Table):
        return w
    if jnp.dtype(looked_up) == jnp.dtype(product):
        return w.astype(product)
    return Table(w.astype(looked_up), w.T.astype(product))


def quantize(w: jax.Array | Int8Matrix, contracted: int) -> Int8Matrix:
    """The nearest int8 values of a float matrix, and their scales.

    Args:
        w: [I, O] or [O, I]; one of int8 stays as it is.
        contracted: the axis I, which products sum over.
    """
    if isinstance(w, Int8Matrix):
        return w
    w = w.astype(jnp.float32)
    scale = jnp.max(jnp.abs(w), axis=contracted, keepdims=True) / LARGEST
    # A column of zeros has the scale zero.
    values = jnp.where(scale == 0, 0.0, jnp.round(w / scale))
    return Int8Matrix(values.astype(jnp.int8), scale)


def reshaped(w: Matrix, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Matrix:
    """[I, O] -> [*inputs, *outputs], where the products of the sizes are I and O."""
    if not isinstance(w, Int8Matrix):
        return w.reshape(*inputs, *outputs)
    ones = (1,) * len(inputs)
    return replace(
        w,
        values=w.values.reshape(*inputs, *outputs),
        scale=w.scale.reshape(*ones, *outputs),
    )


def rows(table: Matrix | Table, ids: jax.Array) -> jax.Array:
    """[V, D] -> [..., D]: the rows of a table at int32 ids [...]."""
    if isinstance(table, Int8Matrix):
        return jnp.take(table.values, ids, axis=0) * jnp.take(table.scale, ids, axis=0)
    return jnp.take(table.rows if isinstance(table, Table) else table, ids, axis=0)
