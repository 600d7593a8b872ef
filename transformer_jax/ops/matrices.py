"""The forms in which decoding holds the matrices of linear layers and embeddings.

A matrix of floats is held in the dtype of the products, so that no search rounds it again. A table
of embeddings that is also the projection to the vocabulary is a `Table`: its rows in the dtype of
the activations, and its transpose for the products.

An `Int8Matrix` is of int8 values, with a float32 scale for each output channel:

    W ~ values * scale        values in [-127, 127], scale = max |W| / 127 over the summed axis

What products sum over is its last axis, [out, in]: XLA's CPU backend hands whole numbers to the
units for them (VNNI) in this layout alone. So a table of embeddings [V, D] is its own transpose.
"""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

#: The largest value. -128 is not used, so that a matrix and its negative have the same values.
LARGEST = 127


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Int8Matrix:
    """Stands for `values * scale`, where a parameter is a matrix of floats otherwise.

    On a CPU its products are of int8 on both sides; elsewhere its numbers become floats, unless it
    is of `model.quantize`.
    """

    values: Any  #: int8 [*O, *I]; of a table, O may have more rows, of zeros
    scale: Any  #: float32 [*O, *1]
    static: Any = None  #: `Static`, or None: of each row, 127 / max |x|
    sums: Any = None  #: int32 [O], those of `values` over I; None where not `static`
    #: whether its products are of int8 on both sides on every device
    everywhere: bool = field(default=False, metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """[I, O] of a matrix that is not `reshaped`."""
        return self.values.shape[1], self.scale.shape[0]

    @property
    def T(self) -> Self:  # noqa: N802  (as of an array)
        return self


class Static(NamedTuple):
    """What is fixed beforehand for the products of a matrix: float32 scalars."""

    alpha: Any  #: what inputs are multiplied by before they are rounded
    unit: Any  #: what a product of whole numbers stands for: 1 / (alpha m)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Int8Products:
    """An `Int8Matrix` of `model.quantize` as training holds it.

    Its whole numbers are in floats, which can have a gradient.
    """

    values: Any  #: [*I, *O]
    scale: Any  #: [*1, *O]
    static: Any  #: as of `Int8Matrix`

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def T(self) -> Self:  # noqa: N802  (as of an array)
        return replace(self, values=self.values.T, scale=self.scale.T)


#: A matrix as a layer gets it.
Matrix = Array | Int8Matrix | Int8Products


class Table(NamedTuple):
    """Stands for a table of embeddings [V, D], which is also the projection to the vocabulary."""

    rows: Any  #: [V, D], as they are looked up
    T: Any  #: [D, V], as products read it


def in_dtypes(w: Array | Table, looked_up: DTypeLike, product: DTypeLike) -> Array | Table:
    """A table [V, D], or a `Table` as it is, with its rows and its transpose in these dtypes."""
    if isinstance(w, Table):
        return w
    if jnp.dtype(looked_up) == jnp.dtype(product):
        return w.astype(product)
    return Table(w.astype(looked_up), w.T.astype(product))


def reshaped(w: Matrix, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Matrix:
    """[I, O] -> [*inputs, *outputs], where the products of the sizes are I and O."""
    ones = (1,) * len(inputs)
    if isinstance(w, Int8Matrix):
        shapes = (*outputs, *inputs), (*outputs, *ones)
    elif isinstance(w, Int8Products):
        shapes = (*inputs, *outputs), (*ones, *outputs)
    else:
        return w.reshape(*inputs, *outputs)
    return replace(w, values=w.values.reshape(shapes[0]), scale=w.scale.reshape(shapes[1]))


def rows(table: Matrix | Table, ids: Array) -> Array:
    """[V, D] -> [..., D]: the rows of a table at int32 ids [...]."""
    if isinstance(table, Int8Matrix | Int8Products):
        return jnp.take(table.values, ids, axis=0) * jnp.take(table.scale, ids, axis=0)
    return jnp.take(table.rows if isinstance(table, Table) else table, ids, axis=0)


def holds_int8(params: Any) -> bool:
    """Whether some of these matrices are of int8."""
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, Int8Matrix))
    return any(isinstance(leaf, Int8Matrix) for leaf in leaves)
