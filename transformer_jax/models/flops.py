"""Floating-point operations that the model needs, independent of the compiler.

Matrix products and convolutions of the forward pass count, as two operations for each
multiply-add. A training step needs three times as many, since each product has two operands
that need a gradient (Chowdhery et al. 2022, arXiv:2204.02311, appendix B). Recomputation to save
memory does not count; masked scores of attention count like others. The number is the same for
every target: the forward pass is traced as for a CPU, which has attention as plain products and not
as a kernel that cannot be looked into.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params

from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig
from transformer_jax.ops.sharding import alone_on


def train_step_flops(
    model: ModelConfig, rows: int, length: int, target_length: int | None = None
) -> int:
    """FLOPs of a training step on `rows` pairs of `length` tokens, of a target's own length."""
    batch = {}
    for side, tokens in (("source", length), ("target", target_length or length)):
        batch[side] = jax.ShapeDtypeStruct((rows, tokens), jnp.int32)
        batch[f"{side}_mask"] = jax.ShapeDtypeStruct((rows, tokens), jnp.bool_)
    with alone_on("cpu"):
        forward = jax.make_jaxpr(partial(api.loss, model))(api.abstract_params(model), batch)
    return 3 * count(forward)


def count(jaxpr: ClosedJaxpr | Jaxpr) -> int:
    """FLOPs of the products in a jaxpr; the body of a scan or a kernel counts as often as it runs.

    For a `cond` its most expensive branch counts, and for a `while` one iteration. Of the forms of
    a function for several platforms the cheapest counts: another may have products that only
    replace other work, such as sums on a TPU.
    """
    total = 0
    equation: Any
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            width = math.prod(left[axis] for axis in contracted)
            total += 2 * width * math.prod(equation.outvars[0].aval.shape)
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            width = math.prod(kernel) // kernel[params["dimension_numbers"].rhs_spec[0]]
            total += 2 * width * math.prod(equation.outvars[0].aval.shape)
        elif name == "triangular_solve":
            matrix, right = (each.aval.shape for each in equation.invars)
            total += matrix[-1] * math.prod(right)
        else:
            inside = list(map(count, jaxprs_in_params(params)))
            if name == "cond":
                total += max(inside) if params.get("branches_platforms") is None else min(inside)
            else:
                grid = params["grid_mapping"].grid if name == "pallas_call" else ()
                total += sum(inside) * math.prod(grid) * params.get("length", 1)
    return total
