"""Floating-point operations that the model needs, whatever the compiler makes of it.

Counted are matrix products and convolutions of the forward pass, a multiplication and an
addition each; a training step needs three times as many, since each product has two operands
that want a gradient (Chowdhery et al. 2022, arXiv:2204.02311, appendix B). What is computed
again to save memory does not count, nor do attention's masked scores count less.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr

from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig


def train_step_flops(model: ModelConfig, rows: int, length: int) -> int:
    """Of a training step on `rows` sentence pairs of `length` pieces on either side."""
    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    mask = jax.ShapeDtypeStruct((rows, length), jnp.bool_)
    batch = {"source": ids, "source_mask": mask, "target": ids, "target_mask": mask}
    forward = jax.make_jaxpr(lambda params, batch: api.loss(model, params, batch)[0])(
        api.abstract_params(model), batch
    )
    return 3 * count(forward)


def count(jaxpr: ClosedJaxpr | Jaxpr) -> int:
    """Operations of the products in a jaxpr; a scan's body counts as often as it runs.

    Of a `cond` the dearest branch counts, and of a `while` one turn of its body.
    """
    inner = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    total = 0
    equation: Any
    for equation in inner.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            width = math.prod(left[axis] for axis in contracted)
            total += 2 * width * math.prod(equation.outvars[0].aval.shape)
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            features = equation.params["dimension_numbers"].rhs_spec[0]
            width = math.prod(kernel) // kernel[features]
            total += 2 * width * math.prod(equation.outvars[0].aval.shape)
        else:
            inside = [count(part) for part in _parts(equation.params)]
            if name == "cond":
                total += max(inside)
            else:
                total += sum(inside) * (equation.params["length"] if name == "scan" else 1)
    return total


def _parts(params: dict[str, Any]) -> list[Any]:
    """The jaxprs among an equation's parameters."""
    found = []
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, (ClosedJaxpr, Jaxpr)):
                found.append(item)
    return found
