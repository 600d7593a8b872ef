"""What runs in int8, which training simulates in floats: `model.quantize`.

Matrices of linear layers and tables of embeddings are put into another form in front of the model,
as an adapter is (`models/lora.py`), so no layer knows of it. The formulas are in
`ops/int8_products.py`. What is not a product with such a matrix stays in floats: scores of
attention, softmax, norms, recurrences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.layers.parameters import MatrixBox, TableBox
from transformer_jax.models.paths import MEASURED, by_path, from_paths
from transformer_jax.ops.int8_products import (
    in_dynamic_int8,
    in_rows,
    in_static_int8,
    lookup_factor,
    static_factor,
)
from transformer_jax.ops.matrices import Int8Matrix, Int8Products

#: A factor before it is measured: that of numbers up to 8.
_UNMEASURED = 127 / 8


class Quantization:
    """A form of matrices, and of what is multiplied with them."""

    measures: ClassVar[bool] = False  #: whether the parameters have factors of activations

    def matrix(self, w: Array, box: MatrixBox, alpha: Array | None) -> Int8Products:
        """The form of one matrix.

        Args:
            w: of floats.
            box: says what the matrix is for.
            alpha: the factor of what it is multiplied with, if that is measured.
        """
        raise NotImplementedError

    def init(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """A further entry of the parameters, with logical axes.

        Args:
            params: the model's parameters in their boxes.
        """
        if not self.measures:
            return {}
        box = nn.LogicallyPartitioned(jnp.float32(_UNMEASURED), (), mesh=None)
        paths = [path for path, each in by_path(params).items() if is_multiplied(each)]
        return {MEASURED: from_paths(dict.fromkeys(paths, box))}

    def merge(
        self, params: dict[str, Any], boxes: Mapping[str, Any], held: bool = False
    ) -> dict[str, Any]:
        """The parameters as the model's layers take them; those that are merged stay as they are.

        Args:
            params: with the entry of `init`.
            boxes: the box of each parameter, by path.
            held: as decoding holds them, in int8; else in floats that training can change.
        """
        alphas = by_path(params.get(MEASURED, {}))
        merged = by_path({name: part for name, part in params.items() if name != MEASURED})
        for path, w in merged.items():
            if isinstance(box := boxes[path], MatrixBox) and not isinstance(w, Int8Matrix):
                whole = self.matrix(w, box, alphas.get(path))
                merged[path] = in_rows(whole, box.contracted) if held else whole
        return from_paths(merged)


@dataclass(frozen=True)
class NoQuantization(Quantization):
    """Floats."""


@dataclass(frozen=True)
class Int8(Quantization):
    """As Bergamot's engine: one factor for a matrix, one for what is multiplied with it.

    The factors of activations are measured when a training begins, on text, with the parameters
    that it begins with; then they stay.
    """

    measures: ClassVar[bool] = True

    def matrix(self, w: Array, box: MatrixBox, alpha: Array | None) -> Int8Products:
        return in_static_int8(w, box.contracted, self.factor(w, box), jax.lax.stop_gradient(alpha))

    @staticmethod
    def factor(w: Array, box: MatrixBox) -> Array:
        """What a matrix is multiplied by before it is rounded, a scalar."""
        return static_factor(w, box.contracted) if is_multiplied(box) else lookup_factor(w)


@dataclass(frozen=True)
class Int8Given(Int8):
    """`Int8` by the factors of a file: of each matrix [alpha, m], without bounds for pairs."""

    def init(self, params: Mapping[str, Any]) -> dict[str, Any]:
        box = nn.LogicallyPartitioned(jnp.zeros(2), (None,), mesh=None)
        paths = [path for path, each in by_path(params).items() if isinstance(each, MatrixBox)]
        return {MEASURED: from_paths(dict.fromkeys(paths, box))}

    def matrix(self, w: Array, box: MatrixBox, alpha: Array | None) -> Int8Products:
        assert alpha is not None
        multiplied = alpha[0] if is_multiplied(box) else None
        return in_static_int8(w, box.contracted, alpha[1], multiplied)


@dataclass(frozen=True)
class Int8Dynamic(Quantization):
    """As CTranslate2: a factor for each output channel, and for each token when it is computed."""

    def matrix(self, w: Array, box: MatrixBox, alpha: Array | None) -> Int8Products:
        return in_dynamic_int8(w, box.contracted)


#: What `model.quantize` can choose.
QUANTIZATIONS: dict[str, type[Quantization]] = {
    "none": NoQuantization,
    "int8": Int8,
    "int8_dynamic": Int8Dynamic,
}


def is_multiplied(box: Any) -> bool:
    """Whether a parameter is a matrix of products, and not only looked up."""
    return isinstance(box, MatrixBox) and (not isinstance(box, TableBox) or box.projects)
